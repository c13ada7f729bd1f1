"""The positions of the largest logits: by hand, then device code against a stable sort."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.select_topk import select_topk

INF, NAN = float("inf"), float("nan")


def test_positions_by_hand() -> None:
    logits = torch.tensor([[0.5, 2.0, 9.0, 2.0, 2.0, 99.0], [-0.0, 0.0, -1.0, NAN, -INF, 99.0]])
    lens = torch.tensor([5, 5], dtype=torch.int32)
    assert select_topk(logits, lens, k=2).tolist() == [[1, 2], [0, 1]]
    assert select_topk(logits, lens, k=4).tolist() == [[1, 2, 3, 4], [0, 1, 2, 3]]
    assert select_topk(logits, lens, k=6).tolist() == [[0, 1, 2, 3, 4, -1]] * 2


KINDS = {
    "normal": torch.randn,
    "ties": lambda shape: torch.randint(-2, 3, shape).float(),
    "equal": lambda shape: torch.full(shape, -1.5),
    "close": lambda shape: 1.0 + torch.randint(0, 300, shape) * 2.0**-23,
    "odd": lambda shape: torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -3e38])[
        torch.randint(0, 7, shape)
    ],
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    ("num_columns", "lens", "k"),
    [
        (1, [1, 0], 1),
        (99, [99, 98, 17, 16, 1, 0], 17),
        (989, [989, 512, 64, -3, 700], 64),
        (2500, [2500, 2049, 2048], 2048),
    ],
)
def test_device_code_is_the_reference(
    device: str,
    kind: str,
    num_columns: int,
    lens: list[int],
    k: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from specsched_kernels.triton import select_topk as device_code

    if device == "cpu":  # several blocks of short rows, which the interpreter works through faster
        monkeypatch.setattr(device_code, "_COUNTED_PER_WARP", 16)
        monkeypatch.setattr(device_code, "_WRITTEN_PER_WARP", 32)
    logits = KINDS[kind]((len(lens), num_columns + 5))
    context_lens = torch.tensor(lens, dtype=torch.int32)
    for row, length in enumerate(lens):
        logits[row, max(length, 0) :] = INF
    view = logits[:, :num_columns]
    out = torch.full((len(lens), k), -77, dtype=torch.int32, device=device)
    device_code.select_topk(view.to(device), context_lens.to(device), out)
    assert torch.equal(out.cpu(), select_topk(view, context_lens, k=k))


def test_rows_are_read_by_their_stride(device: str) -> None:
    from specsched_kernels.triton.select_topk import select_topk as launch

    logits = torch.randn(7, 300).to(device)
    lens = torch.tensor([200, 3, 0, 100, 199, 50, 128], dtype=torch.int32)
    out = torch.empty(7, 40, dtype=torch.int32, device=device)
    launch(logits[:, :200], lens.to(device), out)
    assert torch.equal(out.cpu(), select_topk(logits[:, :200].cpu().contiguous(), lens, k=40))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("num_rows", "num_columns"), [(3, 131_072), (300, 9000)])
def test_long_contexts(num_rows: int, num_columns: int) -> None:
    logits = torch.randn(num_rows, num_columns)
    lens = torch.randint(0, num_columns + 1, (num_rows,)).to(torch.int32)
    out = select_topk(logits.cuda(), lens.cuda(), k=2048)
    assert torch.equal(out.cpu(), select_topk(logits, lens, k=2048))


def test_bad_arguments_are_refused() -> None:
    logits, lens = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="k is 0"):
        select_topk(logits, lens, k=0)
    with pytest.raises(ValueError, match="dense in the last dimension"):
        select_topk(torch.zeros(4, 2).T, lens, k=1)
    with pytest.raises(ValueError, match=r"context_lens is torch\.int64"):
        select_topk(logits, lens.long(), k=1)
