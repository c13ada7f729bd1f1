"""DeepSeek-V3.2 against a float64 reading of its definition and against transformers' class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from specsched_executor.model import ModelFormatError, UnsupportedModelError, load_model

from tests.executor.model.batches import Driver
from tests.executor.model.checkpoints import edit_config, expected_logits, save_folder
from tests.executor.model.deepseek_checkpoints import VOCAB_SIZE, random_deepseek
from tests.executor.model.deepseek_reference import Reference

BLOCK_SIZE = 64
CHUNKS = (33, 34, 1, 5, 1, 1)
"""Of a sequence of 75 tokens: prefill, single rows and a verification, across two blocks."""


def tokens(count: int = sum(CHUNKS)) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(1))


def reference_of(folder: Path, **options) -> Reference:
    config = json.loads((folder / "config.json").read_text())
    return Reference(config, load_file(folder / "model.safetensors"), **options)


def served_logits(folder: Path) -> torch.Tensor:
    driver = Driver(load_model(folder).model, block_size=BLOCK_SIZE)
    sequence = driver.sequence(tokens())
    return torch.cat([driver.run([(sequence, count)])[0][0] for count in CHUNKS])


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The worst row's."""
    expected = expected.double()
    errors = (logits.double() - expected).norm(dim=1) / expected.norm(dim=1)
    return float(errors.max())


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e3}},
        {"norm_topk_prob": False, "routed_scaling_factor": 1.5},
        {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3},
        {"first_k_dense_replace": 3, "index_topk": 40},
        {"tie_word_embeddings": True, "n_shared_experts": 2},
    ],
    ids=["plain", "no-yarn", "unnormalised", "one-group", "dense", "tied"],
)
def test_logits_are_those_of_the_definition(tmp_path, facts):
    folder = save_folder(random_deepseek(**facts), tmp_path)
    reference = reference_of(folder)
    if facts.get("tie_word_embeddings"):
        reference.weights["lm_head.weight"] = reference.weights["model.embed_tokens.weight"]
    expected = reference.logits(tokens())
    num_left_out = sum(int((~chosen).tril().sum()) for chosen in reference.chosen)
    assert num_left_out > 1000  # so that the choice matters
    assert relative_error(served_logits(folder), expected) < 1e-4


def test_logits_are_those_of_transformers_where_all_tokens_are_chosen(tmp_path):
    model = random_deepseek(index_topk=len(tokens()))
    folder = save_folder(model, tmp_path)
    assert relative_error(served_logits(folder), expected_logits(model, tokens())) < 1e-4


def test_the_reference_chooses_as_transformers_does(tmp_path):
    """Without e4m3, which transformers leaves out, and ties, which it breaks as it happens.

    Of few heads all products may be negative, so that a score is exactly 0.
    """
    model = random_deepseek(index_n_heads=16)
    folder = save_folder(model, tmp_path)
    exact = reference_of(folder, quantizes=False)
    assert relative_error(exact.logits(tokens()), expected_logits(model, tokens())) < 1e-4
    rounded = reference_of(folder)
    rounded.logits(tokens())
    before, after = exact.chosen[0], rounded.chosen[0]
    assert 0.9 < float((before & after).sum() / before.sum()) < 1.0


def test_mixed_steps_equal_solo_runs_bit_for_bit(tmp_path):
    """Prefill chunks, verification rows, padding and single rows of several requests."""
    model = load_model(save_folder(random_deepseek(), tmp_path)).model
    driver = Driver(model, block_size=BLOCK_SIZE)
    prompts = [tokens(75), (tokens(40) + 1) % VOCAB_SIZE, tokens(23)]
    solo = [driver.run([(driver.sequence(prompt), len(prompt))])[0][0] for prompt in prompts]
    a, b, c = sequences = [driver.sequence(prompt) for prompt in prompts]
    pieces: list[list[torch.Tensor]] = [[], [], []]
    steps = [
        [(a, 7)],
        [(a, 1), (b, 30)],
        [(c, 20), (a, 8), (b, 1)],
        [(a, 5), (b, 9), (c, 3)],
        [(a, 54)],
    ]
    for step in steps:
        logits, _ = driver.run(step, padding=len(step))
        for (sequence, _), rows in zip(step, logits, strict=True):
            pieces[sequences.index(sequence)].append(rows)
    for together, alone in zip(pieces, solo, strict=True):
        assert torch.equal(torch.cat(together), alone)


def test_rejected_rows_are_overwritten(tmp_path):
    model = load_model(save_folder(random_deepseek(), tmp_path)).model
    driver = Driver(model, block_size=BLOCK_SIZE)
    right = tokens(30)
    expected = driver.run([(driver.sequence(right), 30)])[0][0]
    sequence = driver.sequence(right)
    driver.run([(sequence, 20)])
    sequence.token_ids = torch.cat((right[:20], (right[20:28] + 7) % VOCAB_SIZE))
    driver.run([(sequence, 8)])
    sequence.token_ids, sequence.done = right, 20
    assert torch.equal(driver.run([(sequence, 10)])[0][0], expected[20:])


# ===================== Checkpoints =====================


def quantize_folder(folder: Path, block: int) -> None:
    """Store the matrices of its layers in e4m3 with a scale for each block."""
    path = folder / "model.safetensors"
    stored = {}
    for name, weight in load_file(path).items():
        stored[name] = weight
        if weight.dim() != 2 or "layers" not in name or "gate.weight" in name:
            continue
        rows, columns = (-(-size // block) for size in weight.shape)
        scales = torch.zeros(rows, columns)
        for i in range(rows):
            for j in range(columns):
                span = (slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block))
                scales[i, j] = weight[span].abs().max() / 448
                weight[span] /= scales[i, j]
        stored[name] = weight.to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
    save_file(stored, path)
    edit_config(
        folder, quantization_config={"quant_method": "fp8", "weight_block_size": [block, block]}
    )


def test_weights_in_fp8_blocks(tmp_path):
    folder = save_folder(random_deepseek(), tmp_path)
    quantize_folder(folder, 28)
    reference = reference_of(folder)
    for name in [name for name in reference.weights if name.endswith("_scale_inv")]:
        scales = reference.weights.pop(name)
        matrix = name.removesuffix("_scale_inv")
        weight = reference.weights[matrix].double()
        wide = torch.kron(scales.double(), torch.ones(28, 28).double())
        reference.weights[matrix] = weight * wide[: weight.shape[0], : weight.shape[1]]
    assert relative_error(served_logits(folder), reference.logits(tokens())) < 1e-4


def rewrite(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.indexer.k_norm.bias",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.2.mlp.experts.5.up_proj.weight",
        "model.layers.1.mlp.shared_experts.down_proj.weight",
        "model.layers.2.self_attn.kv_b_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path, name):
    folder = save_folder(random_deepseek(), tmp_path)
    rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFormatError, match=f"'{name}' is missing"):
        load_model(folder)


def test_tensors_that_nobody_reads_are_named(tmp_path):
    folder = save_folder(random_deepseek(), tmp_path)
    rewrite(folder, lambda t: t.update({f"model.layers.1.extra.{i}": torch.ones(1) for i in "ab"}))
    with pytest.raises(
        ModelFormatError, match=r"does not account for: model\.layers\.1\.extra\.a, .*extra\.b"
    ):
        load_model(folder)


def test_layers_for_predicting_more_tokens_are_left_out(tmp_path):
    folder = save_folder(random_deepseek(), tmp_path)
    rewrite(folder, lambda t: t.update({"model.layers.3.eh_proj.weight": torch.ones(1)}))
    assert load_model(folder).config.num_layers == 3


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scoring_func": "softmax"}, UnsupportedModelError, "scoring_func is 'softmax'"),
        ({"topk_method": "greedy"}, UnsupportedModelError, "topk_method is 'greedy'"),
        ({"moe_layer_freq": 2}, UnsupportedModelError, "moe_layer_freq is 2"),
        ({"index_head_dim": 64}, UnsupportedModelError, "index_head_dim is 64; served: 128"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias is True"),
        ({"mlp_layer_types": ["dense"] * 3}, UnsupportedModelError, "mlp_layer_types is"),
        ({"q_lora_rank": None}, ModelFormatError, "q_lora_rank is None"),
        ({"qk_rope_head_dim": 15}, ModelFormatError, "qk_rope_head_dim is 15"),
        ({"n_group": 3}, ModelFormatError, "n_routed_experts is 8, n_group 3"),
        ({"num_experts_per_tok": 5}, ModelFormatError, "num_experts_per_tok is 5"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            ModelFormatError,
            r"weight_block_size is \[128\]",
        ),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path, changes, error, message):
    folder = save_folder(random_deepseek(), tmp_path)
    edit_config(folder, **changes)
    with pytest.raises(error, match=message):
        load_model(folder)


def test_the_cache_has_blocks_of_64_tokens(tmp_path):
    model = load_model(save_folder(random_deepseek(), tmp_path)).model
    with pytest.raises(ValueError, match="blocks of 16 tokens; sparse latent attention takes 64"):
        model.allocate_kv_cache(4, 16)
    cache = model.allocate_kv_cache(4, 64)
    assert 4 * model.kv_block_bytes(64) == cache.num_bytes
