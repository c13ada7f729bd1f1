"""Drafting on the device against float64 references, and those against the executor's own draw."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from specsched_executor.sampling import Purpose, draw, keyed_uniforms
from specsched_kernels.draft_confidence import ConfidenceHead, draft_confidence
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.draw_drafts import DraftDraws, MarkovBias, draw_drafts

NUM_SLOTS = 9


@dataclasses.dataclass
class Case:
    base_logits: torch.Tensor
    anchor_ids: torch.Tensor
    markov: MarkovBias
    draws: DraftDraws | None

    def to(self, device: str) -> Case:
        return Case(*(_moved(getattr(self, f.name), device) for f in dataclasses.fields(self)))


def _moved(value, device: str):
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if value is None:
        return None
    fields = dataclasses.fields(value)
    return type(value)(*(_moved(getattr(value, f.name), device) for f in fields))


def make_case(
    num_requests: int, num_tokens: int, vocab: int, rank: int, *, is_drawing: bool, seed: int = 0
) -> Case:
    """Random drafts; of the drawing ones every third request is greedy and one is padding."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def integers(high: int) -> torch.Tensor:
        return torch.randint(0, high, (num_requests,), generator=generator)

    draws = None
    if is_drawing:
        temperatures = 0.4 + torch.rand(num_requests, generator=generator)
        temperatures[1::3] = 0
        slot_ids = torch.randperm(max(NUM_SLOTS, num_requests), generator=generator)[:num_requests]
        slot_ids[3:4] = -1
        kept = DraftDistribution.empty(max(NUM_SLOTS, num_requests), num_tokens + 1, vocab)
        step_id = integers(99)[:1].clone()
        draws = DraftDraws(temperatures, integers(2**60), integers(500), step_id, slot_ids, kept)
    markov = MarkovBias(normal(vocab, rank), normal(vocab, rank) * rank**-0.5)
    return Case(normal(num_requests, num_tokens, vocab) * 2, integers(vocab), markov, draws)


def run_device_code(case: Case, device: str) -> tuple[torch.Tensor, Case]:
    from specsched_kernels.triton.draw_drafts import draw_drafts as launch

    moved = case.to(device)
    out = torch.full(case.base_logits.shape[:2], -77, device=device)
    launch(moved.base_logits, moved.anchor_ids, moved.markov, moved.draws, out)
    return out.cpu(), moved.to("cpu")


@pytest.mark.parametrize("is_drawing", [False, True])
@pytest.mark.parametrize(
    ("num_requests", "num_tokens", "vocab", "rank"),
    [(1, 1, 1, 1), (1, 3, 99, 8), (5, 2, 128, 16), (17, 2, 300, 72)],
)
def test_device_code_draws_what_the_reference_does(
    device, num_requests, num_tokens, vocab, rank, is_drawing
) -> None:
    case = make_case(num_requests, num_tokens, vocab, rank, is_drawing=is_drawing)
    expected_case = case.to("cpu")
    expected = draw_drafts(
        expected_case.base_logits, case.anchor_ids, case.markov, expected_case.draws
    )
    found, moved = run_device_code(case, device)
    assert torch.equal(found, expected)
    if case.draws is not None:
        for name in DraftDistribution.__slots__:
            kept, wanted = getattr(moved.draws.kept, name), getattr(expected_case.draws.kept, name)
            torch.testing.assert_close(kept, wanted, rtol=1e-5, atol=1e-5)


def test_the_reference_draws_as_the_executor_does() -> None:
    case = make_case(12, 3, 61, 4, is_drawing=True)
    draws, (temperatures, slots) = case.draws, (case.draws.temperatures, case.draws.slot_ids)
    found = draw_drafts(case.base_logits, case.anchor_ids, case.markov, draws)
    drawing = (temperatures > 0) & (slots >= 0)
    previous = case.anchor_ids
    for position in range(3):
        bias = case.markov.codes[previous] @ case.markov.weights.T
        logits = case.base_logits[:, position] + bias
        expected = (logits / temperatures.clamp(min=1e-3)[:, None]).softmax(-1)
        uniforms = keyed_uniforms(
            draws.seeds, draws.positions + position, Purpose.DRAFT, draws.step_id
        )
        drawn = torch.where(drawing, draw(expected, uniforms), logits.argmax(-1))
        assert torch.equal(found[:, position], drawn)
        previous = drawn
        at = slots[drawing], position
        scaled = draws.kept.scales[at][:, None] * (
            draws.kept.logits[at] - draws.kept.maxima[at][:, None]
        )
        kept = scaled.exp() / draws.kept.masses[at][:, None]
        torch.testing.assert_close(kept, expected[drawing], rtol=1e-4, atol=1e-6)


def test_a_position_drafted_in_another_step_is_drawn_anew() -> None:
    case = make_case(12, 3, 61, 4, is_drawing=True)
    again = case.to("cpu")
    again.draws.step_id.add_(1)
    first, second = (
        draw_drafts(c.base_logits, c.anchor_ids, c.markov, c.draws) for c in (case, again)
    )
    drawing = (case.draws.temperatures > 0) & (case.draws.slot_ids >= 0)
    assert torch.equal(first[~drawing], second[~drawing])
    assert not torch.equal(first[drawing], second[drawing])


def test_extreme_logits_and_temperatures(device) -> None:
    """Masked tokens are never drawn, tiny temperatures take the likeliest token."""
    case = make_case(5, 2, 300, 4, is_drawing=True)
    case.draws.temperatures[:] = 1e-40
    case.base_logits[2] = -torch.inf
    case.base_logits[2, :, 260] = 1.0
    expected = draw_drafts(case.base_logits, case.anchor_ids, case.markov)
    found, _ = run_device_code(case, device)
    assert torch.equal(found, expected)
    case.base_logits[0, 0, 7] = torch.nan
    found, _ = run_device_code(case, device)
    assert ((found >= 0) & (found < 300)).all()


def test_wrong_arguments_are_named() -> None:
    case = make_case(2, 3, 20, 4, is_drawing=True)
    short = MarkovBias(case.markov.codes[1:], case.markov.weights)
    with pytest.raises(ValueError, match=r"markov\.codes"):
        draw_drafts(case.base_logits, case.anchor_ids, short)
    kept = DraftDistribution.empty(9, 2, 20)
    draws = dataclasses.replace(case.draws, kept=kept)
    with pytest.raises(ValueError, match="3 tokens; accepted: at most 2"):
        draw_drafts(case.base_logits, case.anchor_ids, case.markov, draws)


@pytest.mark.parametrize(
    ("num_requests", "num_tokens", "width", "rank"), [(1, 1, 1, 1), (3, 4, 99, 5)]
)
def test_confidences(device, num_requests, num_tokens, width, rank) -> None:
    from specsched_kernels.triton.draft_confidence import draft_confidence as launch

    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(num_requests, num_tokens + 1, width, generator=generator)[:, :num_tokens]
    anchors = torch.randint(0, 7, (num_requests,), generator=generator)
    tokens = torch.randint(0, 7, (num_requests, num_tokens), generator=generator)
    codes = torch.randn(7, rank, generator=generator).bfloat16()
    head = ConfidenceHead(*(torch.randn(n, generator=generator) for n in (width, rank, 1)))
    expected = draft_confidence(hidden, anchors, tokens, codes, head)
    out = torch.full((num_requests, num_tokens), -7.0, device=device)
    inputs = [tensor.to(device) for tensor in (anchors, tokens, codes)]
    moved = torch.randn(num_requests, num_tokens + 1, width, device=device)[:, :num_tokens]
    launch(moved.copy_(hidden), *inputs, _moved(head, device), out)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 7
    assert torch.equal(draft_confidence(hidden, anchors, changed, codes, head), expected)
