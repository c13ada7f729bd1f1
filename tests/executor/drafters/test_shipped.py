"""The drafters that come with the package: whose they are, and that they are whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import ModelConfig
from specsched_executor.drafters.dspark import load_checkpoint
from specsched_executor.drafters.shipped import shipped_checkpoint
from specsched_executor.model.loading import open_checkpoint
from specsched_executor.serve.drafter import choose_drafter

_MAX_BYTES = 40 * 10**6


@pytest.fixture(scope="module")
def target() -> ModelConfig:
    return open_checkpoint().spec.config


def test_the_served_model_has_a_drafter_with_manifest_and_licence_note(target):
    folder = shipped_checkpoint(target)
    assert folder is not None
    assert sum(file.stat().st_size for file in folder.iterdir()) < _MAX_BYTES
    assert "Apache-2.0" in (folder / "NOTICE.md").read_text()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["num_steps_done"] == manifest["options"]["optimizer"]["num_steps"]
    config = load_checkpoint(folder).config
    assert config.vocab_size == target.vocab_size
    assert config.hidden_size == target.hidden_size
    assert max(config.target_layer_ids) < target.num_layers


@pytest.mark.parametrize("changed", [{"name": "another"}, {"num_layers": 31}, {"vocab_size": 8}])
def test_a_model_of_another_name_or_shape_gets_none(target, changed):
    other = replace(target, **changed)
    assert shipped_checkpoint(other) is None
    assert choose_drafter(ExecutorConfig(), other).drafter == "ngram"
    with pytest.raises(ValueError, match="none ships for model"):
        choose_drafter(ExecutorConfig(drafter="dspark"), other)


def test_auto_takes_the_shipped_drafter_and_a_given_one_before_it(target, tmp_path):
    assert choose_drafter(ExecutorConfig(), target).drafter == "dspark"
    (tmp_path / "config.json").write_text("{}")
    given = choose_drafter(ExecutorConfig(drafter_checkpoint=tmp_path), target)
    assert (given.drafter, given.drafter_checkpoint) == ("dspark", tmp_path)
    for drafter in ("none", "ngram"):
        asked = ExecutorConfig(drafter=drafter)
        assert choose_drafter(asked, target) is asked
