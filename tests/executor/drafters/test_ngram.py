import numpy as np
import pytest
import torch
from specsched_executor.core import DraftInput
from specsched_executor.drafters import NgramDrafter, NoDrafter, create_drafter


def inputs(*histories, k=4, slots=None, generations=None) -> DraftInput:
    n = len(histories)
    slots = list(range(n)) if slots is None else slots
    return DraftInput(
        step_id=1,
        slot_ids=torch.tensor(slots),
        generations=torch.tensor(generations or [1] * n),
        histories=histories,
        max_draft_tokens=torch.full((n,), k),
        temperatures=torch.zeros(n),
        seeds=torch.zeros(n, dtype=torch.int64),
    )


def test_drafts_what_followed_the_same_words():
    output = NgramDrafter(4).draft(inputs([1, 2, 3, 4, 5, 6, 1, 2]))
    assert output.num_draft_tokens.tolist() == [4]
    assert output.token_ids[0].tolist() == [3, 4, 5, 6]
    assert output.distribution is None


def test_goes_on_from_the_draft_where_the_history_ends():
    output = NgramDrafter(5).draft(inputs([9, 1, 2, 1, 2], k=5))
    assert output.token_ids[0].tolist() == [1, 2, 1, 2, 1]


def test_draws_a_blank_without_a_match_or_allowance():
    output = NgramDrafter(4).draft(inputs([1, 2, 3, 4]))
    assert output.num_draft_tokens.tolist() == [0]
    assert NgramDrafter(4).draft(inputs([1, 1, 1, 1], k=0)).num_draft_tokens.tolist() == [0]


def test_draft_length_is_limited_per_request():
    given = inputs([1, 2, 3, 1, 2], [1, 2, 3, 1, 2])
    given.max_draft_tokens[:] = torch.tensor([1, 3])
    assert NgramDrafter(4).draft(given).num_draft_tokens.tolist() == [1, 3]


def test_confidence_does_not_depend_on_the_drafted_tokens():
    """Equal match length, different continuation: the same confidence."""
    drafter = NgramDrafter(4)
    output = drafter.draft(inputs([5, 1, 2, 3, 8, 8, 1, 2], [6, 1, 2, 7, 9, 9, 1, 2]))
    assert output.token_ids[0].tolist() != output.token_ids[1].tolist()
    assert torch.equal(output.confidence[0], output.confidence[1])


def test_confidence_follows_the_outcomes_of_its_match_length():
    drafter = NgramDrafter(2)
    short, long = [7, 1, 2, 3, 8, 1, 2], [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6]
    for _ in range(200):
        given = inputs(short, long, k=2)
        drafter.draft(given)
        verified = torch.tensor([2, 2])
        drafter.observe(given.slot_ids, given.generations, verified, torch.tensor([0, 2]))
    confidence = drafter.draft(inputs(short, long, k=2)).confidence
    assert confidence[0, 0] < 0.1
    assert confidence[1].min() > 0.9


def test_outcomes_count_once_and_only_when_verified():
    drafter = NgramDrafter(2)
    given = inputs([1, 2, 3, 1, 2], k=2)
    before = drafter.draft(given).confidence.clone()
    drafter.observe(given.slot_ids, given.generations, torch.tensor([0]), torch.tensor([0]))
    assert torch.equal(drafter.draft(given).confidence, before)
    drafter.observe(given.slot_ids, given.generations, torch.tensor([2]), torch.tensor([2]))
    drafter.observe(given.slot_ids, given.generations, torch.tensor([2]), torch.tensor([2]))
    once = NgramDrafter(2)
    once.draft(given)
    once.observe(given.slot_ids, given.generations, torch.tensor([2]), torch.tensor([2]))
    assert torch.equal(drafter.draft(given).confidence, once.draft(given).confidence)


def test_a_reused_slot_starts_with_its_own_history():
    drafter = NgramDrafter(4)
    drafter.draft(inputs([1, 2, 3, 4, 1, 2]))
    newcomer = inputs([8, 9, 1, 2], generations=[2])
    assert drafter.draft(newcomer).num_draft_tokens.tolist() == [0]


def test_release_forgets_the_history():
    drafter = NgramDrafter(4)
    drafter.draft(inputs([1, 2, 3, 4, 1, 2]))
    drafter.release(0)
    drafter.release(0)
    assert drafter.draft(inputs([8, 9, 1, 2])).num_draft_tokens.tolist() == [0]


def test_accepts_on_text_that_repeats_itself():
    """A replayed history: nearly every draft is right, and the confidence says so."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 50, 60).tolist() * 6
    drafter = NgramDrafter(4)
    position, accepted_total, steps = 70, 0, 0
    while position < len(text) - 5:
        given = inputs(text[:position])
        output = drafter.draft(given)
        n = int(output.num_draft_tokens[0])
        right = np.equal(output.token_ids[0, :n].numpy(), text[position : position + n])
        accepted = int(np.cumprod(right).sum())
        drafter.observe(
            given.slot_ids, given.generations, output.num_draft_tokens, torch.tensor([accepted])
        )
        position += accepted + 1
        accepted_total, steps = accepted_total + accepted, steps + 1
    assert accepted_total / steps > 3.5
    assert drafter.draft(inputs(text[:position])).confidence[0].min() > 0.8


def test_drafters_are_created_by_name():
    assert isinstance(create_drafter("none", 4), NoDrafter)
    assert isinstance(create_drafter("ngram", 4), NgramDrafter)
    with pytest.raises(ValueError, match=r"'eagle'.*none, ngram, dspark"):
        create_drafter("eagle", 4)
    with pytest.raises(ValueError, match="needs a checkpoint"):
        create_drafter("dspark", 4)


def test_impossible_match_lengths_are_refused():
    with pytest.raises(ValueError, match="3 to 2"):
        NgramDrafter(4, min_match_tokens=3, max_match_tokens=2)
