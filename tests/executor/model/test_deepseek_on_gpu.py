"""DeepSeek-V3.2 on a device: near the definition, the same in every layout, and captured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from specsched_executor.core import PAD_SLOT, ModelBatch
from specsched_executor.model import DecoderModel, LinearLayout, LoadOptions, load_model
from specsched_executor.model.attention_plan import plan_attention
from specsched_executor.model.huggingface import HuggingFaceCheckpoint
from specsched_executor.model.linear import LinearFactory
from specsched_executor.model.sparse_mla import IndexerLayout
from specsched_executor.model.spec import Dtype
from specsched_executor.model.weights import load_weights

from tests.executor.model.checkpoints import save_folder
from tests.executor.model.deepseek_checkpoints import VOCAB_SIZE, random_deepseek
from tests.executor.model.deepseek_reference import Reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BLOCK, CONTEXT, MAX_BLOCKS = 64, 200, 4
PUBLISHED_HEADS = {
    "hidden_size": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "moe_intermediate_size": 64,
    "initializer_range": 0.06,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = random_deepseek(index_topk=64, **PUBLISHED_HEADS)
    return save_folder(model, tmp_path_factory.mktemp("deepseek"))


def tokens(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed))


def batch_of(
    sequences: list[torch.Tensor],
    done: list[int],
    query_lens: list[int],
    *,
    padding: int = 0,
    uniform_query_len: int | None = None,
) -> ModelBatch:
    """The next query_lens tokens of each sequence, whose blocks lie interleaved."""
    count = len(sequences)
    tables = torch.arange(MAX_BLOCKS)[None] * count + torch.arange(count)[:, None]
    spans = [torch.arange(at, at + n) for at, n in zip(done, query_lens, strict=True)]
    positions = torch.cat(spans)
    requests = torch.arange(count).repeat_interleave(torch.tensor(query_lens))
    pad = torch.zeros(padding, dtype=torch.int64)
    slots = tables[requests, positions // BLOCK] * BLOCK + positions % BLOCK
    arrays = {
        "token_ids": torch.cat([*(s[span] for s, span in zip(sequences, spans, strict=True)), pad]),
        "positions": torch.cat([positions, pad]),
        "slot_mapping": torch.cat([slots, pad + PAD_SLOT]),
        "query_start_loc": torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        "context_lens": torch.tensor(done) + torch.tensor(query_lens),
        "block_tables": tables.to(torch.int32),
        "logit_rows": torch.arange(len(positions)),
    }
    return ModelBatch(
        **{name: array.cuda() for name, array in arrays.items()},
        max_query_len=max(query_lens),
        max_context_tokens=MAX_BLOCKS * BLOCK,
        uniform_query_len=uniform_query_len,
    )


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    logits, expected = logits.double().cpu(), expected.double().cpu()
    return float((logits - expected).norm() / expected.norm())


def prefilled(model: DecoderModel, sequences: list[torch.Tensor], done: list[int]):
    cache = model.allocate_kv_cache(MAX_BLOCKS * len(sequences), BLOCK)
    model.forward(batch_of(sequences, [0] * len(done), done), cache)
    return cache


def test_logits_are_near_the_definition(folder):
    config = json.loads((folder / "config.json").read_text())
    everything = {**config, "index_topk": CONTEXT}
    weights = load_file(folder / "model.safetensors")
    model = load_model(folder, LoadOptions(Dtype.BFLOAT16, device="cuda")).model
    sequence = tokens(CONTEXT)
    cache = model.allocate_kv_cache(MAX_BLOCKS, BLOCK)
    first = model.forward(batch_of([sequence], [0], [CONTEXT - 9]), cache).logits
    rest = model.forward(batch_of([sequence], [CONTEXT - 9], [9], padding=7), cache).logits
    logits = torch.cat([first, rest])
    expected = Reference(config, weights).logits(sequence)
    error = relative_error(logits, expected)
    unlike = relative_error(Reference(everything, weights).logits(sequence), expected)
    print(f"error {error:.4f}; attending to all {unlike:.4f}")
    assert error < unlike / 2  # bfloat16 flips a few choices, no more
    assert relative_error(logits[:64], expected[:64]) < 0.03  # where all are chosen


def test_layouts_agree(folder):
    """Ragged rows with padding and requests of zero length in each, equal ones in all."""
    checkpoint = HuggingFaceCheckpoint(folder)
    with torch.inference_mode():
        weights = load_weights(checkpoint, LinearFactory(LinearLayout.AUTO, torch.bfloat16, "cuda"))
    models = {
        layout: DecoderModel(
            checkpoint.spec,
            weights,
            plan_attention(
                checkpoint.spec, torch.device("cuda"), is_scheduled=False, layout=layout
            ),
        )
        for layout in IndexerLayout
        if layout is not IndexerLayout.NATIVE
    }
    sequences, done = [tokens(CONTEXT, seed) for seed in range(3)], [150, 64, 100]
    cache = prefilled(models[IndexerLayout.GENERIC], sequences, done)
    logits = {}
    for layout, model in models.items():
        equal = batch_of(sequences, done, [2, 2, 2], uniform_query_len=2)
        ragged = batch_of(sequences, done, [5, 0, 3], padding=8)
        logits[layout] = [model.forward(batch, cache).logits for batch in (equal, ragged)]
    for layout, results in logits.items():
        for result, other in zip(results, logits[IndexerLayout.GENERIC], strict=True):
            assert torch.isfinite(result).all()
            assert relative_error(result, other) < 0.05, layout


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_one_graph_serves_any_mix_of_lengths(folder, is_scheduled):
    options = LoadOptions(Dtype.BFLOAT16, device="cuda", is_scheduled=is_scheduled)
    model = load_model(folder, options).model
    sequences, done = [tokens(CONTEXT, seed) for seed in range(3)], [150, 64, 100]
    cache = prefilled(model, sequences, done)
    static = batch_of(sequences, done, [4, 4, 4])
    fields = [name for name in ModelBatch.__dataclass_fields__ if name != "logit_rows"]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model.forward(static, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = model.forward(static, cache).logits
    for lens in ([1, 2, 3], [0, 9, 1], [12, 0, 0], [4, 4, 4]):
        batch = batch_of(sequences, done, lens, padding=12 - sum(lens))
        for name in fields:
            value = getattr(batch, name)
            if isinstance(value, torch.Tensor):
                getattr(static, name).copy_(value)
        graph.replay()
        replayed = captured[: sum(lens)].clone()
        eager = replace(batch, logit_rows=static.logit_rows)
        assert torch.equal(replayed, model.forward(eager, cache).logits[: sum(lens)])
