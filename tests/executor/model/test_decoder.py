"""The forward pass: ragged, chunked and padded steps give each request what it gets alone."""

from __future__ import annotations

import pytest
import torch
from specsched_executor.core import ModelBatch
from specsched_executor.model import DecoderModel, load_model

from tests.executor.model.batches import Driver
from tests.executor.model.checkpoints import VOCAB_SIZE, random_model, save_folder


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request, tmp_path_factory) -> DecoderModel:
    folder = tmp_path_factory.mktemp("model")
    return load_model(save_folder(random_model(request.param), folder)).model


def random_tokens(count: int) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (count,))


@pytest.mark.parametrize("block_size", [16, 5])
def test_mixed_steps_equal_solo_runs_bit_for_bit(model, block_size):
    """Prefill chunks, verification rows and single rows of several requests share steps."""
    driver = Driver(model, block_size=block_size, num_blocks=128)
    prompts = [random_tokens(count) for count in (61, 40, 23)]
    solo = [driver.run([(driver.sequence(prompt), len(prompt))])[0][0] for prompt in prompts]
    a, b, c = (driver.sequence(prompt) for prompt in prompts)
    pieces = {0: [], 1: [], 2: []}
    steps = [
        [(a, 7)],
        [(a, 1), (b, 30)],
        [(c, 20), (a, 8), (b, 1)],
        [(a, 5), (b, 9), (c, 3)],
        [(a, 40)],
    ]
    for step in steps:
        logits, _ = driver.run(step, padding=len(step))
        for (sequence, _), rows in zip(step, logits, strict=True):
            pieces[[a, b, c].index(sequence)].append(rows)
    for request, expected in enumerate(solo):
        together = torch.cat(pieces[request])
        if block_size == 16:
            assert torch.equal(together, expected)
        else:
            torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)


def test_rejected_rows_are_overwritten(model):
    """Rows written beyond what is accepted leave no trace once written again."""
    driver = Driver(model)
    tokens = random_tokens(30)
    expected = driver.run([(driver.sequence(tokens), 30)])[0][0]
    sequence = driver.sequence(tokens)
    driver.run([(sequence, 20)])
    sequence.token_ids = torch.cat((tokens[:20], random_tokens(8)))
    driver.run([(sequence, 8)])
    sequence.token_ids, sequence.done = tokens, 20
    assert torch.equal(driver.run([(sequence, 10)])[0][0], expected[20:])


def test_only_wanted_logits_are_computed(model):
    driver = Driver(model)
    sequence = driver.sequence(random_tokens(20))
    (all_rows,), _ = driver.run([(sequence, 20)])
    batch = ModelBatch(
        token_ids=sequence.token_ids,
        positions=torch.arange(20),
        slot_mapping=torch.tensor(sequence.blocks)[torch.arange(20) // 16] * 16
        + torch.arange(20) % 16,
        query_start_loc=torch.tensor([0, 20]),
        context_lens=torch.tensor([20]),
        block_tables=torch.tensor([sequence.blocks], dtype=torch.int32),
        logit_rows=torch.tensor([19, 3]),
    )
    logits = model.forward(batch, driver.cache).logits
    assert logits.dtype == torch.float32
    assert torch.equal(logits, all_rows[[19, 3]])


def test_features_are_the_hidden_states_of_the_layers(tmp_path):
    reference = random_model()
    driver = Driver(load_model(save_folder(reference, tmp_path)).model)
    tokens = random_tokens(25)
    _, output = driver.run([(driver.sequence(tokens), 25)], layers=(0, 1))
    with torch.no_grad():
        states = reference(tokens[None], output_hidden_states=True).hidden_states
    assert set(output.features) == {0, 1}
    for layer, features in output.features.items():
        torch.testing.assert_close(features, states[layer + 1][0], rtol=1e-4, atol=1e-4)


def test_a_foreign_cache_is_refused(model):
    class Other:
        num_blocks, block_size = 1, 16

    batch = ModelBatch(*(torch.zeros(1, dtype=torch.int64),) * 7)
    with pytest.raises(TypeError, match="expected a PagedKvCache, not Other"):
        model.forward(batch, Other())


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_an_empty_cache_is_refused(model, num_blocks, block_size):
    with pytest.raises(ValueError, match=f"{num_blocks} blocks of {block_size} tokens"):
        model.allocate_kv_cache(num_blocks, block_size)
