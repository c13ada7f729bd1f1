"""Device code of the allocation against the torch reference, bit for bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from specsched_kernels import VerifyAllocation, allocate_verify_lens
from specsched_kernels.reference.allocate_verify_lens import AllocationInputs

from tests.kernels._allocation_cases import KINDS, Case, random_case

SHAPES = [(1, 1), (3, 7), (17, 5), (33, 16)]
LARGE_SHAPES = [(99, 16), (256, 7), (989, 3), (1023, 16), (1024, 7), (1024, 16)]


def poisoned(num_requests: int, padded_rows: int, padded_logits: int | None, device: str):
    out = VerifyAllocation.empty(num_requests, padded_rows, padded_logits, device)
    for field in dataclasses.fields(out):
        getattr(out, field.name).fill_(-77)
    return out


def assert_device_code_is_exact(case: Case, device: str) -> None:
    from specsched_kernels.triton import allocate_verify_lens as device_code

    expected = allocate_verify_lens(*case.args, **case.kwargs)
    moved = case.to(device)
    padded_logits = moved.kwargs.pop("padded_logit_rows", None)
    out = poisoned(moved.args[1].shape[0], moved.kwargs.pop("padded_rows"), padded_logits, device)
    names = ("confidence", "num_draft_tokens", "weights", "budget")
    optional = {"max_verify_len": None, "num_base_rows": None, "samples": None, "slot_ids": None}
    arguments = optional | dict(zip(names, moved.args, strict=True)) | moved.kwargs
    device_code.allocate_verify_lens(AllocationInputs(**arguments), out)
    for field in dataclasses.fields(out):
        got, wanted = getattr(out, field.name).cpu(), getattr(expected, field.name)
        assert torch.equal(got, wanted), field.name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_requests", "k"), SHAPES)
def test_small(device: str, kind: str, num_requests: int, k: int) -> None:
    for seed in range(2):
        case = random_case(seed, kind, num_requests, k, prefill=seed == 1)
        assert_device_code_is_exact(case, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_requests", "k"), LARGE_SHAPES)
def test_large(kind: str, num_requests: int, k: int) -> None:
    for seed in range(8):
        case = random_case(seed, kind, num_requests, k, prefill=seed % 2 == 1)
        assert_device_code_is_exact(case, "cuda")


@pytest.mark.parametrize("budget", [0, 1, 5, 44, 45, 1000])
def test_budget_in_memory(device: str, budget: int) -> None:
    case = random_case(0, "ties", 9, 5)
    present = torch.full((9,), 5, dtype=torch.int32)
    args = (case.args[0], present, case.args[2], torch.tensor(budget, dtype=torch.int32))
    assert_device_code_is_exact(Case(args, case.kwargs), device)


@pytest.mark.parametrize("cap", [0, 2, torch.tensor([1, 0, 3, 9], dtype=torch.int32)])
def test_cap(device: str, cap: int | torch.Tensor) -> None:
    case = random_case(1, "uniform", 4, 5)
    assert_device_code_is_exact(Case(case.args, case.kwargs | {"max_verify_len": cap}), device)


def test_defaults_and_tight_buffers(device: str) -> None:
    case = random_case(2, "uniform", 6, 4)
    kwargs = {name: case.kwargs[name] for name in ("prior", "start_positions")}
    confidence = case.args[0][:6].contiguous()
    args = (confidence, torch.full((6,), 4, dtype=torch.int32), case.args[2], 24)
    for padded_rows, padded_logits in [(13, 30), (30, 11), (30, 600)]:
        sizes = {"padded_rows": padded_rows, "padded_logit_rows": padded_logits}
        assert_device_code_is_exact(Case(args, kwargs | sizes), device)


def test_padded_requests_get_nothing(device: str) -> None:
    case = random_case(4, "uniform", 8, 3)
    case.kwargs["slot_ids"][5:] = -1
    case.kwargs["num_base_rows"][5:] = 0
    assert_device_code_is_exact(case, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_one_captured_graph_serves_any_budget_and_any_confidences() -> None:
    case = random_case(0, "uniform", 64, 7)
    moved = case.to("cuda")
    budget = torch.zeros((), dtype=torch.int32, device="cuda")
    args = (*moved.args[:3], budget)
    out = poisoned(64, moved.kwargs["padded_rows"], None, "cuda")
    allocate_verify_lens(*args, **moved.kwargs, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        allocate_verify_lens(*args, **moved.kwargs, out=out)
    seen = set()
    for seed in range(8):
        fresh = random_case(seed, "ties", 64, 7)
        moved.args[0].copy_(fresh.args[0])
        budget.fill_(seed * 40)
        graph.replay()
        expected = allocate_verify_lens(
            fresh.args[0], case.args[1], case.args[2], seed * 40, **case.kwargs
        )
        assert torch.equal(out.verify_lens.cpu(), expected.verify_lens)
        assert torch.equal(out.row_to_request.cpu(), expected.row_to_request)
        seen.add(tuple(expected.verify_lens.tolist()))
    assert len(seen) > 4
