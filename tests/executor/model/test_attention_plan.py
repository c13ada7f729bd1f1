"""What is decided of a model's attention before its weights are read, and what is refused then."""

from __future__ import annotations

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.model import LoadOptions, UnsupportedModelError, load_model, loading
from specsched_executor.model import attention_plan as planning
from specsched_executor.model.attention_plan import plan_attention
from specsched_executor.model.dummy import DummyCheckpoint
from specsched_executor.model.sparse_mla import IndexerLayout
from specsched_executor.model.sparse_mla.layouts import IndexerDevice
from specsched_executor.serve.facts import attention_facts
from specsched_kernels.deep_gemm import DeepGemm
from specsched_protocol.settings import ConfigError, load_settings

CPU = torch.device("cpu")
SPARSE = DummyCheckpoint.of_preset("tiny").spec
GROUPED = DummyCheckpoint.of_preset("tiny-qwen3").spec


@pytest.fixture
def hopper(monkeypatch) -> None:
    """A device where DeepGEMM works, without its varlen kernel."""
    found = IndexerDevice((9, 0), DeepGemm(object(), has_varlen=False))
    monkeypatch.setattr(planning, "probe_indexer", lambda device, heads: found)


@pytest.fixture
def no_weights(monkeypatch) -> None:
    def too_late(*arguments):
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "load_weights", too_late)


def tiny(**changes) -> LoadOptions:
    return LoadOptions(is_dummy=True, preset="tiny", **changes)


def test_what_runs_is_told_by_name():
    assert plan_attention(GROUPED, CPU).name == "grouped"
    plan = plan_attention(SPARSE, CPU)
    assert plan.name == "sparse-mla-generic"
    assert attention_facts(plan)["deep_gemm"] == "no CUDA device is used"


@pytest.mark.usefixtures("hopper")
def test_the_layout_follows_from_what_is_scheduled():
    scheduled = plan_attention(SPARSE, CPU)
    assert (scheduled.name, attention_facts(scheduled)["deep_gemm"]) == (
        "sparse-mla-flattened",
        "works",
    )
    assert scheduled.indexer.layout(1) is IndexerLayout.UNIFORM
    assert plan_attention(SPARSE, CPU, is_scheduled=False).name == "sparse-mla-uniform"


@pytest.mark.usefixtures("hopper", "no_weights")
def test_what_cannot_be_scheduled_is_refused_with_all_reasons_before_the_weights():
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(options=tiny(indexer_layout=IndexerLayout.UNIFORM))
    message = str(refused.value)
    assert "uniform indexer is captured UNIFORM_BATCH, not ALWAYS" in message
    assert "uniform indexer needs the host to know query lengths" in message
    assert "scheduler = off" in message


@pytest.mark.usefixtures("hopper", "no_weights")
def test_without_a_scheduler_it_is_not_refused():
    with pytest.raises(AssertionError, match="weights were read"):
        load_model(options=tiny(indexer_layout=IndexerLayout.UNIFORM, is_scheduled=False))


@pytest.mark.usefixtures("no_weights")
def test_what_neither_device_nor_scheduler_can_is_told_at_once():
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(options=tiny(indexer_layout=IndexerLayout.UNIFORM))
    message = str(refused.value)
    assert message.startswith("indexer_layout = uniform cannot be had here: this device cannot:")
    assert "DeepGEMM cannot be used: no CUDA device is used" in message
    assert "UNIFORM_BATCH, not ALWAYS" in message
    assert "the host to know query lengths" in message


@pytest.mark.parametrize("layout", ["native", "flattened", "uniform"])
def test_a_layout_that_cannot_be_had_is_refused_with_the_reason(layout):
    message = f"indexer_layout = {layout} cannot be had here: .*DeepGEMM cannot be used: no CUDA"
    with pytest.raises(UnsupportedModelError, match=message) as refused:
        plan_attention(SPARSE, CPU, is_scheduled=False, layout=IndexerLayout(layout))
    assert "scheduler" not in str(refused.value)


@pytest.mark.usefixtures("hopper")
def test_the_native_layout_needs_the_varlen_kernel():
    with pytest.raises(UnsupportedModelError, match=r"native cannot .* DeepGEMM has no varlen"):
        plan_attention(SPARSE, CPU, layout=IndexerLayout.NATIVE)
    assert plan_attention(SPARSE, CPU, layout=IndexerLayout.GENERIC).name == "sparse-mla-generic"


def test_options_without_effect_are_refused():
    with pytest.raises(ValueError, match="generic has no effect: tiny-qwen3 has no indexer"):
        plan_attention(GROUPED, CPU, layout=IndexerLayout.GENERIC)
    with pytest.raises(ConfigError, match="indexer_layout has no effect with device = cpu"):
        load_settings(ExecutorConfig, {"indexer_layout": "generic"}, {})
