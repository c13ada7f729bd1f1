"""The torch reference against the rule in plain Python, and its row layout."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specsched_kernels import VerifyAllocation, allocate_verify_lens
from specsched_kernels.reference import allocate_verify_lens as reference
from specsched_kernels.reference.allocate_verify_lens import AllocationInputs

from tests.kernels._allocation_cases import KINDS, plain_verify_lens, random_case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_requests", "k"), [(1, 1), (3, 7), (17, 5), (99, 16)])
def test_reference_is_the_plain_rule(kind: str, num_requests: int, k: int) -> None:
    for seed in range(5):
        case = random_case(seed, kind, num_requests, k, prefill=seed % 2 == 1)
        result = allocate_verify_lens(*case.args, **case.kwargs)
        assert result.verify_lens.tolist() == plain_verify_lens(case)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(KINDS),
    r=st.integers(1, 30),
    k=st.integers(1, 9),
)
def test_rows_and_logits_follow_the_lengths(seed: int, kind: str, r: int, k: int) -> None:
    case = random_case(seed, kind, r, k, prefill=True)
    result = allocate_verify_lens(*case.args, **case.kwargs)
    base = case.kwargs["num_base_rows"].tolist()
    samples = case.kwargs["samples"].tolist()
    start = case.kwargs["start_positions"].tolist()
    rows, logits = [], []
    for request, length in enumerate(result.verify_lens.tolist()):
        assert result.query_start_loc[request] == len(rows)
        assert result.logit_start_loc[request] == len(logits)
        last_base = len(rows) + base[request] - 1
        rows += [(request, start[request] + i) for i in range(base[request] + length)]
        if samples[request] and base[request]:
            logits += range(last_base, len(rows))
    assert result.query_start_loc[r] == len(rows)
    assert result.logit_start_loc[r] == len(logits)
    padding = case.kwargs["padded_rows"] - len(rows)
    assert result.row_to_request.tolist() == [row[0] for row in rows] + [-1] * padding
    assert result.row_positions.tolist() == [row[1] for row in rows] + [0] * padding
    assert result.logit_rows[: len(logits)].tolist() == logits
    assert not result.logit_rows[len(logits) :].any()


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(KINDS),
    r=st.integers(0, 30),
    k=st.integers(1, 9),
    cap=st.none() | st.integers(0, 9),
    room=st.integers(0, 40),
)
def test_compiled_code_equals_the_reference_bit_for_bit(
    seed: int, kind: str, r: int, k: int, cap: int | None, room: int
) -> None:
    case = random_case(seed, kind, r, k, prefill=seed % 2 == 1)
    num_rows = int(case.kwargs["num_base_rows"].clamp(min=0).sum()) if seed % 2 == 1 else r
    padded = num_rows + room
    kwargs = case.kwargs | {"padded_rows": padded}
    result = allocate_verify_lens(*case.args, **kwargs, max_verify_len=cap)
    expected = VerifyAllocation.empty(r, padded)
    names = ("confidence", "num_draft_tokens", "weights", "budget")
    given_inputs = dict(zip(names, case.args, strict=True)) | case.kwargs
    fields = dataclasses.fields(AllocationInputs)
    inputs = {field.name: given_inputs.get(field.name) for field in fields}
    reference.allocate_verify_lens(AllocationInputs(**inputs | {"max_verify_len": cap}), expected)
    for field in dataclasses.fields(VerifyAllocation):
        assert torch.equal(getattr(result, field.name), getattr(expected, field.name)), field.name


def test_base_rows_beyond_the_outputs_are_refused() -> None:
    case = random_case(4, "uniform", 4, 5)
    with pytest.raises(ValueError, match="outgrow the padded rows"):
        allocate_verify_lens(*case.args, **case.kwargs | {"padded_rows": 3})


def test_ties_go_by_position_then_request() -> None:
    case = random_case(0, "ones", 4, 3)
    present = torch.full((4,), 3, dtype=torch.int32)
    args = (case.args[0], present, case.args[2], 6)
    assert allocate_verify_lens(*args, **case.kwargs).verify_lens.tolist() == [2, 2, 1, 1]


def test_a_later_sure_token_does_not_lift_an_earlier_doubtful_one() -> None:
    confidence = torch.tensor([[0.2, 1.0, 1.0], [0.3, 0.1, 1.0]])
    present = torch.full((2,), 3, dtype=torch.int32)
    result = allocate_verify_lens(
        confidence,
        present,
        torch.ones(2),
        1,
        prior=torch.ones(3),
        start_positions=torch.zeros(2, dtype=torch.int64),
        padded_rows=8,
    )
    assert result.verify_lens.tolist() == [0, 1]


@pytest.mark.parametrize("cap", [0, 2, torch.tensor([1, 0, 3, 9], dtype=torch.int32)])
def test_cap_per_request(cap: int | torch.Tensor) -> None:
    case = random_case(1, "uniform", 4, 5)
    present = torch.full((4,), 5, dtype=torch.int32)
    args = (case.args[0], present, case.args[2], torch.tensor(20, dtype=torch.int32))
    result = allocate_verify_lens(*args, **case.kwargs, max_verify_len=cap)
    expected = torch.as_tensor(cap, dtype=torch.int32).expand(4).clamp(max=5)
    assert torch.equal(result.verify_lens, expected)


@pytest.mark.parametrize(("padded_rows", "padded_logits"), [(7, None), (40, 7)])
def test_budget_never_outgrows_the_buffers(padded_rows: int, padded_logits: int | None) -> None:
    case = random_case(2, "uniform", 4, 5)
    args = (case.args[0], torch.full((4,), 5, dtype=torch.int32), case.args[2], 20)
    kwargs = case.kwargs | {"padded_rows": padded_rows, "padded_logit_rows": padded_logits}
    result = allocate_verify_lens(*args, **kwargs)
    assert result.verify_lens.sum() == 3


def test_out_is_filled_in_place_and_no_request_is_fine() -> None:
    empty = torch.zeros(0, dtype=torch.int32)
    out = VerifyAllocation.empty(0, 3)
    result = allocate_verify_lens(
        torch.zeros(0, 2),
        empty,
        torch.zeros(0),
        5,
        prior=torch.ones(2),
        start_positions=empty.long(),
        padded_rows=3,
        out=out,
    )
    assert result is out
    assert out.query_start_loc.tolist() == [0]
    assert out.row_to_request.tolist() == [-1, -1, -1]


def test_bad_arguments_are_named() -> None:
    case = random_case(3, "uniform", 4, 5)
    args, kwargs = case.args, case.kwargs
    with pytest.raises(ValueError, match="budget is -1"):
        allocate_verify_lens(*args[:3], -1, **kwargs)
    with pytest.raises(ValueError, match=r"weights has shape \(3,\)"):
        allocate_verify_lens(args[0], args[1], args[2][:3], 1, **kwargs)
    with pytest.raises(ValueError, match=r"prior is torch\.float64"):
        allocate_verify_lens(*args, **kwargs | {"prior": kwargs["prior"].double()})
    out = dataclasses.replace(VerifyAllocation.empty(4, 9), logit_rows=torch.zeros(9))
    with pytest.raises(ValueError, match=r"out\.logit_rows is torch\.float32"):
        allocate_verify_lens(*args, **kwargs | {"padded_rows": 9}, out=out)
