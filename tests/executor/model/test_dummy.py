"""Models with random weights, in the shape of a preset."""

from __future__ import annotations

import json

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.model import LoadOptions, ModelNotFoundError, load_model
from specsched_executor.model.dummy import DummyCheckpoint
from specsched_executor.presets import PRESETS
from specsched_executor.serve.facts import model_name
from specsched_protocol.settings import ConfigError, load_settings

from tests.executor.model.batches import Driver
from tests.executor.model.checkpoints import random_model, save_folder

TINY = [name for name in PRESETS if name.startswith("tiny")]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_configuration_that_is_served(preset):
    config = DummyCheckpoint.of_preset(preset).spec.config
    assert config.name == preset
    assert config.vocab_size >= 257


@pytest.mark.parametrize("preset", TINY)
def test_a_dummy_model_is_the_same_each_time_and_tells_inputs_apart(preset):
    tokens = torch.arange(40) % 7
    logits = []
    for shift in (0, 0, 1):
        loaded = load_model(options=LoadOptions(is_dummy=True, preset=preset))
        driver = Driver(loaded.model, block_size=64)
        logits.append(driver.run([(driver.sequence(tokens + shift), 40)])[0][0])
    assert torch.equal(logits[0], logits[1])
    assert torch.isfinite(logits[0]).all()
    assert (logits[0] - logits[2]).abs().max() > 0.1
    assert logits[0].std() > 0.1


def test_a_dummy_model_reads_and_writes_bytes():
    loaded = load_model(options=LoadOptions(is_dummy=True, preset=TINY[0]))
    text = "Grüße, 世界!\n"
    ids = loaded.tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert loaded.tokenizer.decode([*ids, 256, 4000]) == text
    assert loaded.tokenizer.eos_token_ids == loaded.config.eos_token_ids == (256,)
    assert json.loads(loaded.tokenizer.files()["tokenizer.json"])


def test_a_folder_without_weights_gives_the_shape(tmp_path):
    folder = save_folder(random_model("qwen3"), tmp_path)
    real = load_model(folder)
    (folder / "model.safetensors").unlink()
    loaded = load_model(folder, LoadOptions(is_dummy=True))
    assert loaded.spec == real.spec
    assert loaded.tokenizer.encode("t5 t7") == [5, 7]
    with pytest.raises(ModelNotFoundError, match=r"is no folder with config.json; accepted"):
        load_model(folder / "config.json", LoadOptions(is_dummy=True))


def test_the_name_says_that_weights_are_random():
    loaded = load_model(options=LoadOptions(is_dummy=True, preset=TINY[0]))
    config = ExecutorConfig(load_format="dummy", preset=TINY[0])
    assert model_name(config, loaded) == f"{TINY[0]} (random weights)"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"load_format": "dummy"}, "load_format = dummy with model = None and preset = None"),
        ({"preset": TINY[0]}, "preset has no effect with load_format = auto"),
        ({"load_format": "dummy", "preset": "huge"}, f"preset = 'huge'.*{TINY[0]}"),
        (
            {"load_format": "dummy", "preset": TINY[0], "model": "."},
            f"with model = . and preset = {TINY[0]}",
        ),
    ],
)
def test_what_is_loaded_is_said_once(flags, message):
    with pytest.raises(ConfigError, match=message):
        load_settings(ExecutorConfig, flags, {})
