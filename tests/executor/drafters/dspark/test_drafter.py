from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from specsched_executor.core import DraftInput
from specsched_executor.drafters.dspark import DrafterCheckpointError, DSparkDrafter, cache
from specsched_executor.drafters.dspark import drafter as drafter_module
from specsched_executor.model import load_model
from specsched_executor.training.network import BlockInputs, TrainableDrafter

from tests.executor.model.checkpoints import VOCAB_SIZE, random_model, save_folder

from .small import CONFIG, random_checkpoint

HIDDEN, K = CONFIG.hidden_size, CONFIG.block_size
LAYERS = CONFIG.target_layer_ids


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request, tmp_path_factory):
    folder = save_folder(random_model(request.param), tmp_path_factory.mktemp(request.param))
    return load_model(folder).model


def make_drafter(target, num_slots=4, **changes):
    checkpoint = random_checkpoint(**changes)
    return checkpoint, DSparkDrafter(
        checkpoint, target, num_slots=num_slots, max_draft_tokens=K, max_context_tokens=200
    )


def inputs(requests, *, limits=None, temperatures=None, step_id=0, generation=1):
    """requests: (slot, history, new features [n, L * hidden])."""
    slots, histories, new = zip(*requests, strict=True)
    features = torch.cat(new)
    counts = [0]
    for rows in new:
        counts.append(counts[-1] + len(rows))
    num = len(requests)
    return DraftInput(
        step_id=step_id,
        slot_ids=torch.tensor(slots),
        generations=torch.full((num,), generation),
        histories=tuple(list(history) for history in histories),
        max_draft_tokens=torch.tensor(limits or [K] * num),
        temperatures=torch.tensor(temperatures or [0.0] * num),
        seeds=torch.arange(num) + 11,
        features=dict(zip(LAYERS, features.split(HIDDEN, dim=1), strict=True)),
        feature_start_loc=torch.tensor(counts),
    )


def random_request(seed, num_context):
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(0, VOCAB_SIZE, (num_context + 1,), generator=generator).tolist()
    return history, torch.randn(num_context, len(LAYERS) * HIDDEN, generator=generator)


def expected_greedy(checkpoint, history, features):
    """Tokens and confidences by the network that training differentiates, in float32."""
    network = TrainableDrafter(
        checkpoint.config, checkpoint.tensors["embed_tokens.weight"].float(), torch.float32
    )
    for name, tensor in network.tensors().items():
        tensor.copy_(checkpoint.tensors[name].float())
    anchor = len(history) - 1
    padded = torch.cat((features, torch.full((1, features.shape[1]), 1e3)))
    with torch.no_grad():
        hidden = network(
            BlockInputs(padded[None], torch.tensor([[history[-1]]]), torch.tensor([[anchor]]))
        )[0, 0]
        tokens, confidence, previous = [], [], torch.tensor(history[-1])
        for j in range(K):
            code = network.markov(previous)
            logits = F.linear(hidden[j], checkpoint.tensors["lm_head.weight"].float())
            logits = logits + F.linear(code, network.weight("markov_head.markov_w2.weight"))
            confidence.append(float(network.confidence_logits(hidden[j], code).sigmoid()))
            previous = logits.argmax()
            tokens.append(int(previous))
    return tokens, confidence


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_serves_what_was_trained(target, window, qk_norm):
    checkpoint, drafter = make_drafter(target, window=window, qk_norm=qk_norm)
    cases = [random_request(seed, n) for seed, n in ((1, 3), (2, 23), (3, 24), (4, 150))]
    output = drafter.draft(
        inputs([(slot, history, new) for slot, (history, new) in enumerate(cases)])
    )
    assert output.distribution is None
    for row, (history, features) in enumerate(cases):
        tokens, confidence = expected_greedy(checkpoint, history, features)
        assert output.token_ids[row].tolist() == tokens
        torch.testing.assert_close(
            output.confidence[row], torch.tensor(confidence), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("chunk", [1, 7, 30])
def test_context_in_pieces_is_context_at_once(target, window, chunk):
    """Chunked prefill, then decoding with accepted drafts, against one long prefill."""
    _, whole = make_drafter(target, window=window)
    _, pieces = make_drafter(target, window=window)
    history, features = random_request(9, 64)
    expected = whole.draft(inputs([(0, history, features)]))
    for start in range(0, len(features), chunk):
        end = min(start + chunk, len(features))
        is_last = end == len(features)
        # Drafts on the way use the places of context that is not there yet.
        other_history, other = random_request(100 + start, 2)
        output = pieces.draft(
            inputs([(2, history[: end + 1], features[start:end]), (1, other_history, other)])
        )
    assert is_last
    assert torch.equal(output.token_ids[0], expected.token_ids[0])
    torch.testing.assert_close(output.confidence[0], expected.confidence[0], rtol=1e-4, atol=1e-5)


def test_a_reused_slot_remembers_nothing(target):
    _, fresh = make_drafter(target)
    _, used = make_drafter(target)
    used.draft(inputs([(0, *random_request(1, 40))]))
    history, features = random_request(2, 12)
    later = inputs([(0, history, features)], generation=2)
    assert torch.equal(used.draft(later).confidence, fresh.draft(later).confidence)


def test_released_pages_are_used_again(target):
    _, drafter = make_drafter(target, num_slots=2)
    free = drafter._cache.num_free_pages
    for generation in range(1, 40):
        drafter.draft(inputs([(0, *random_request(3, 150))], generation=generation))
        drafter.release(0)
    assert drafter._cache.num_free_pages == free


def test_shorter_drafts_are_prefixes(target):
    _, drafter = make_drafter(target)
    history, features = random_request(5, 20)
    nothing = features[:0]
    whole = drafter.draft(inputs([(0, history, features)]))
    for length in (3, 1):
        short = drafter.draft(inputs([(0, history, nothing)], limits=[length]))
        assert short.num_draft_tokens.tolist() == [length]
        assert torch.equal(short.token_ids[0, :length], whole.token_ids[0, :length])
        assert torch.equal(short.confidence[0, :length], whole.confidence[0, :length])
        assert short.confidence[0, length:].isnan().all()


def test_length_zero_takes_the_context_in(target):
    _, drafter = make_drafter(target)
    _, other = make_drafter(target)
    history, features = random_request(6, 20)
    silent = drafter.draft(inputs([(0, history, features[:8])], limits=[0]))
    assert silent.num_draft_tokens.tolist() == [0]
    output = drafter.draft(inputs([(0, history, features[8:])]))
    expected = other.draft(inputs([(0, history, features)]))
    assert torch.equal(output.token_ids, expected.token_ids)


def written_rows(drafter, monkeypatch):
    """Appended to by each batch of rows that the drafter projects: how many."""
    counts = []
    add_context = drafter._backbone.add_context

    def counting(rows, cache):
        counts.append(len(rows.positions))
        add_context(rows, cache)

    monkeypatch.setattr(drafter._backbone, "add_context", counting)
    return counts


@pytest.mark.parametrize("window", [None, 24])
def test_a_pause_changes_no_draft(target, window, monkeypatch):
    """Context taken in while nobody drafts, more than is kept, beside requests that end."""
    monkeypatch.setattr(cache, "_MAX_UNWRITTEN_TOKENS", 64)
    checkpoint, pausing = make_drafter(target, window=window)
    _, drafting = make_drafter(target, window=window)
    written = written_rows(pausing, monkeypatch)
    history, features = random_request(7, 153)
    for step in range(50):
        rows = (0, history[: 3 * step + 4], features[3 * step : 3 * step + 3])
        beside = (1 + step % 2, *random_request(200 + step, 3))
        for drafter, limit in ((pausing, 0), (drafting, K)):
            requests = inputs([rows, beside], limits=[limit, limit], step_id=step)
            drafter.draft(requests)
            if step % 5 == 4:
                drafter.release(beside[0])
    assert bool(written) == (window is None)
    last = inputs([(0, history, features[150:])])
    expected = drafting.draft(last)
    output = pausing.draft(last)
    assert window in (None, sum(written))
    assert torch.equal(output.token_ids, expected.token_ids)
    torch.testing.assert_close(output.confidence, expected.confidence, rtol=1e-4, atol=1e-5)
    tokens, _ = expected_greedy(checkpoint, history, features)
    assert output.token_ids[0].tolist() == tokens


def test_only_who_is_drafted_for_is_written(target, monkeypatch):
    _, drafter = make_drafter(target, window=24)
    written = written_rows(drafter, monkeypatch)
    requests = [(slot, *random_request(slot, 10 + slot)) for slot in range(3)]
    drafter.draft(inputs(requests, limits=[0, K, 0]))
    assert written == [11]
    history, features = requests[2][1:]
    _, fresh = make_drafter(target, window=24)
    later = drafter.draft(inputs([(2, history, features[:0])]))
    assert written == [11, 12]
    expected = fresh.draft(inputs([(2, history, features)]))
    assert torch.equal(later.token_ids, expected.token_ids)
    assert torch.equal(later.confidence, expected.confidence)


def test_many_rows_are_written_a_batch_at_a_time(target, monkeypatch):
    _, drafter = make_drafter(target)
    history, features = random_request(5, 150)
    expected = drafter.draft(inputs([(0, history, features)]))
    _, other = make_drafter(target)
    monkeypatch.setattr(drafter_module, "_MAX_ROWS_AT_ONCE", 64)
    written = written_rows(other, monkeypatch)
    output = other.draft(inputs([(0, history, features)]))
    assert [count for count in written if count] == [64, 64, 22]
    assert torch.equal(output.token_ids, expected.token_ids)
    torch.testing.assert_close(output.confidence, expected.confidence, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 24])
def test_what_a_released_request_left_unwritten_is_never_written(target, window, monkeypatch):
    _, used = make_drafter(target, window=window)
    _, fresh = make_drafter(target, window=window)
    used.draft(inputs([(0, *random_request(1, 40))], limits=[0]))
    used.release(0)
    written = written_rows(used, monkeypatch)
    history, features = random_request(2, 12)
    later = inputs([(0, history, features)])
    assert torch.equal(used.draft(later).confidence, fresh.draft(later).confidence)
    assert written == [12]


def test_drafts_are_drawn_from_the_distribution_that_is_kept(target):
    """Chi-square of the first token over many seeds, of the second given the likeliest first."""
    _, drafter = make_drafter(target)
    history, features = random_request(7, 10)
    counts = torch.zeros(VOCAB_SIZE)
    for step in range(500):
        new = features if step == 0 else features[:0]
        output = drafter.draft(inputs([(0, history, new)], temperatures=[0.7], step_id=step))
        counts[output.token_ids[0, 0]] += 1
        assert output.distribution is not None
    first = output.distribution[0, 0]
    torch.testing.assert_close(first.sum(), torch.tensor(1.0))
    expected = first * counts.sum()
    big = expected >= 5
    pooled = torch.stack((expected[~big].sum(), counts[~big].sum()))
    chi = ((counts[big] - expected[big]) ** 2 / expected[big]).sum()
    chi = chi + (pooled[1] - pooled[0]) ** 2 / pooled[0].clamp(min=1e-9)
    freedom = float(big.sum())
    assert float(chi) < freedom + 5 * (2 * freedom) ** 0.5


def test_another_step_draws_anew(target):
    _, drafter = make_drafter(target)
    history, features = random_request(8, 10)
    drafts = []
    for step in range(6):
        new = features if step == 0 else features[:0]
        output = drafter.draft(inputs([(0, history, new)], temperatures=[1.0], step_id=step))
        drafts.append(tuple(output.token_ids[0].tolist()))
    assert len(set(drafts)) > 1


def test_a_confidence_does_not_see_its_token(target):
    """Confidence j is the same whatever token j became; later ones are not."""
    _, drafter = make_drafter(target)
    history, features = random_request(12, 16)
    by_prefix: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for step in range(300):
        new = features if step == 0 else features[:0]
        output = drafter.draft(inputs([(0, history, new)], temperatures=[0.3], step_id=step))
        tokens = output.token_ids[0].tolist()
        for j in range(K):
            by_prefix.setdefault(tuple(tokens[:j]), []).append(output.confidence[0, j])
    assert len(by_prefix) > 5
    for values in by_prefix.values():
        assert max(values) == min(values)
    assert len({float(values[0]) for prefix, values in by_prefix.items() if len(prefix) == 1}) > 1


@pytest.mark.parametrize(
    ("changes", "length", "named"),
    [
        ({"vocab_size": 161}, K, "vocab_size 161"),
        ({"num_target_layers": 9}, K, "num_target_layers 9"),
        ({}, K + 1, "max_draft_tokens is 5"),
    ],
)
def test_a_drafter_of_another_target_is_refused(target, changes, length, named):
    checkpoint = random_checkpoint(**changes)
    with pytest.raises(DrafterCheckpointError, match=named):
        DSparkDrafter(checkpoint, target, num_slots=1, max_draft_tokens=length)
