from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from specsched_executor.drafters.dspark import (
    DrafterCheckpointError,
    DSparkConfig,
    load_checkpoint,
    save_checkpoint,
)

from .small import random_checkpoint

LAYOUT = {
    "embed_tokens.weight",
    "lm_head.weight",
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    "markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
    *(
        f"layers.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "self_attn.q_norm",
            "self_attn.k_norm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    ),
}


@pytest.fixture
def folder(tmp_path):
    checkpoint = random_checkpoint()
    save_checkpoint(tmp_path, checkpoint.config, checkpoint.tensors)
    return tmp_path


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)


def edit(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_published_names_and_no_others_are_written(folder):
    assert set(safetensors.torch.load_file(folder / "model.safetensors")) == LAYOUT
    fields = json.loads((folder / "config.json").read_text())
    assert fields["architectures"] == ["Qwen3DSparkModel"]
    assert fields["target_layer_ids"] == [0, 2]


@pytest.mark.parametrize("max_shard_bytes", [None, 20_000])
def test_what_was_saved_is_loaded(tmp_path, max_shard_bytes):
    saved = random_checkpoint(window=24)
    save_checkpoint(tmp_path, saved.config, saved.tensors, max_shard_bytes=max_shard_bytes)
    loaded = load_checkpoint(tmp_path)
    assert loaded.config == saved.config
    assert loaded.tensors.keys() == saved.tensors.keys()
    for name, tensor in saved.tensors.items():
        assert torch.equal(loaded.tensors[name], tensor), name
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (max_shard_bytes is not None)


@pytest.mark.parametrize(
    "changes", [{"qk_norm": False}, {"has_own_embeddings": False}, {"window": 16}]
)
def test_a_config_reads_back_as_it_was_written(changes):
    config = random_checkpoint(**changes).config
    assert DSparkConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "name",
    ["confidence_head.proj.weight", "markov_head.markov_w2.weight", "lm_head.weight", "fc.weight"],
)
def test_a_missing_tensor_is_named(folder, name):
    rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(DrafterCheckpointError, match=f"missing: {name}"):
        load_checkpoint(folder)


def test_an_unexpected_tensor_is_named(folder):
    rewrite(folder, lambda tensors: tensors.update({"rnn_head.weight": torch.zeros(2)}))
    with pytest.raises(DrafterCheckpointError, match=r"unexpected: rnn_head\.weight"):
        load_checkpoint(folder)


def test_embeddings_beside_a_config_that_shares_them_are_unexpected(folder):
    edit(folder, embeddings="target")
    with pytest.raises(DrafterCheckpointError, match=r"unexpected: embed_tokens\.weight"):
        load_checkpoint(folder)


def test_a_tensor_of_another_shape_is_named(folder):
    rewrite(folder, lambda tensors: tensors.update({"norm.weight": torch.ones(7)}))
    with pytest.raises(DrafterCheckpointError, match=r"norm\.weight has shape \(7,\)"):
        load_checkpoint(folder)


def test_a_tensor_that_is_not_finite_is_named(folder):
    rewrite(folder, lambda tensors: tensors["norm.weight"].fill_(torch.nan))
    with pytest.raises(DrafterCheckpointError, match=r"norm\.weight holds values"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"enable_confidence_head": False}, "enable_confidence_head is False"),
        ({"confidence_head_with_markov": False}, "confidence_head_with_markov is False"),
        ({"markov_head_type": "rnn"}, "markov_head_type is 'rnn'"),
        ({"markov_rank": 0}, "markov_rank is 0"),
        ({"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel"),
        ({"target_layer_ids": [2, 0]}, "target_layer_ids"),
        ({"target_layer_ids": [0, 3]}, "target_layer_ids"),
        ({"mask_token_id": 160}, "mask_token_id is 160"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling is 'yarn'"),
        ({"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder, fields, named):
    edit(folder, **fields)
    with pytest.raises(DrafterCheckpointError, match=named):
        load_checkpoint(folder)


def test_an_index_may_not_lead_out_of_its_folder(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"fc.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DrafterCheckpointError, match="outside its folder"):
        load_checkpoint(folder)
