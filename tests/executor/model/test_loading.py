"""Checkpoints of every kind against transformers' forward pass on the same weights."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from specsched_executor.model import (
    Dtype,
    LinearLayout,
    LoadOptions,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
    load_model,
)

from tests.executor.model.batches import Driver
from tests.executor.model.checkpoints import (
    VOCAB_SIZE,
    edit_config,
    expected_logits,
    random_model,
    save_folder,
    save_gguf,
)
from tests.executor.model.gguf_writer import F16, F32, Q4_1, Q8_0

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tokens(count: int = 70) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(1))


def check_logits(path, reference, options=None, tolerance=2e-4):
    """Prefill in two chunks, then single tokens, through the paged cache."""
    driver = Driver(load_model(path, options).model)
    sequence = driver.sequence(tokens())
    chunks = [driver.run([(sequence, count)])[0][0] for count in (33, 34, 1, 1, 1)]
    expected = expected_logits(reference, tokens())
    torch.testing.assert_close(torch.cat(chunks), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [F32, F16, Q8_0, Q4_1])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf(tmp_path, kind, tied):
    model = random_model(tie_word_embeddings=tied)
    check_logits(save_gguf(model, tmp_path / "tiny.gguf", kind), model)


def test_gguf_with_biases_in_attention(tmp_path):
    model = random_model(attention_bias=True)
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias = None
    check_logits(save_gguf(model, tmp_path / "tiny.gguf"), model)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": LLAMA3_ROPE},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 3.0}},
        {"num_key_value_heads": 6, "head_dim": 20},
    ],
    ids=["plain", "tied", "biased", "llama3-rope", "linear-rope", "odd-head"],
)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_huggingface_folder(tmp_path, kind, facts):
    model = random_model(kind, **facts)
    check_logits(save_folder(model, tmp_path), model)


def test_older_spelling_of_rope_settings(tmp_path):
    model = random_model(rope_parameters=LLAMA3_ROPE)
    folder = save_folder(model, tmp_path)
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    edit_config(folder, rope_parameters=None, rope_theta=1000.0, rope_scaling=scaling)
    check_logits(folder, model)


def test_sharded_folder(tmp_path):
    model = random_model()
    folder = save_folder(model, tmp_path, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    check_logits(folder, model)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_read_exactly(tmp_path, stored):
    folder = save_folder(random_model().to(stored), tmp_path)
    reference = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    check_logits(folder, reference.eval())


def test_bfloat16_products(tmp_path):
    model = random_model()
    folder = save_folder(model, tmp_path)
    driver = Driver(load_model(folder, LoadOptions(dtype=Dtype.BFLOAT16)).model)
    (logits,), _ = driver.run([(driver.sequence(tokens()), 70)])
    expected = expected_logits(model, tokens())
    error = (logits - expected).norm() / expected.norm()
    assert 1e-4 < error < 0.1


def test_plain_and_packed_linears_agree(tmp_path):
    model = random_model()
    folder = save_folder(model, tmp_path)
    for layout in LinearLayout:
        check_logits(folder, model, LoadOptions(linear_layout=layout))


def test_context_limit(tmp_path):
    folder = save_folder(random_model(), tmp_path)
    loaded = load_model(folder, LoadOptions(max_context_tokens=100))
    assert loaded.config.max_context_tokens == 100
    with pytest.raises(UnsupportedModelError, match=r"max_context_tokens is 257.*made for 256"):
        load_model(folder, LoadOptions(max_context_tokens=257))
    with pytest.raises(ValueError, match="is 0; must be at least 1"):
        LoadOptions(max_context_tokens=0)


def test_end_tokens_of_both_configs(tmp_path):
    folder = save_folder(random_model(eos_token_id=5), tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 5, 7]}')
    assert load_model(folder).config.eos_token_ids == (9, 5, 7)


# ===================== What is refused =====================


def test_missing_path(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"nothing.gguf does not exist; accepted: a .gguf"):
        load_model(tmp_path / "nothing.gguf")


def test_unknown_architecture_is_named_with_those_served(tmp_path):
    folder = save_folder(random_model(), tmp_path)
    edit_config(folder, architectures=["MambaForCausalLM"])
    with pytest.raises(
        UnsupportedModelError, match=r"MambaForCausalLM.*LlamaForCausalLM, Qwen3ForCausalLM"
    ):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; served: 'silu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "'yarn'; served: default, linear, llama3",
        ),
    ],
)
def test_what_this_decoder_would_compute_differently(tmp_path, changes, message):
    folder = save_folder(random_model(), tmp_path)
    edit_config(folder, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"vocab_size": 100.5}, "vocab_size is 100.5, expected a whole number"),
        ({"num_key_value_heads": 4}, "6 attention heads are no multiple of 4"),
        ({"num_hidden_layers": 4}, r"model.layers.3.input_layernorm.weight' is missing"),
        ({"intermediate_size": 64}, r"has shape \(128, 96\), expected \(64, 96\)"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "lacks or misstates"),
    ],
)
def test_inconsistent_folder(tmp_path, changes, message):
    folder = save_folder(random_model(), tmp_path)
    edit_config(folder, **changes)
    with pytest.raises(ModelFormatError, match=message):
        load_model(folder)


def test_folder_without_weights_or_config(tmp_path):
    with pytest.raises(ModelFormatError, match=r"config.json is missing; accepted: a .gguf"):
        load_model(tmp_path)
    folder = save_folder(random_model(), tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"model.safetensors is missing; weights are read"):
        load_model(folder)


def test_truncated_safetensors(tmp_path):
    folder = save_folder(random_model(), tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFormatError, match=r"model.safetensors is truncated"):
        load_model(folder)


def test_index_that_leaves_the_folder(tmp_path):
    folder = save_folder(random_model(), tmp_path / "model", max_shard_size="100KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name, shard = next(iter(content["weight_map"].items()))
    shutil.copy(folder / shard, tmp_path / "outside.safetensors")
    content["weight_map"][name] = "../outside.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ModelFormatError, match="is no file name of this folder"):
        load_model(folder)


def test_folder_without_tokenizer(tmp_path):
    folder = save_folder(random_model(), tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer.json is missing"):
        load_model(folder)
