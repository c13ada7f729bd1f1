from __future__ import annotations

import subprocess
import sys

import pytest
from specsched_executor.config import ExecutorConfig
from specsched_protocol.settings import ConfigError, load_settings


def _load(**flags: object) -> ExecutorConfig:
    return load_settings(ExecutorConfig, flags, {})


def test_defaults_serve_the_packaged_model_on_loopback():
    config = _load()
    assert config.model is None
    assert (config.host, config.max_draft_tokens, config.scheduler) == ("127.0.0.1", 7, "auto")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"max_draft_tokens": 99}, r"max_draft_tokens = 99 .*>= 1 and <= 16"),
        ({"port": 70_000}, r"port = 70000 .*<= 65535"),
        ({"host": "0.0.0.0"}, r"host = '0.0.0.0' .*127.0.0.1, localhost or ::1"),
        ({"model": "/no/such.gguf"}, r"model = '/no/such.gguf' .*no such path"),
        ({"drafter": "medusa"}, r"drafter = 'medusa' .*'none', 'ngram' or 'dspark'"),
        ({"fallback": "retry"}, r"fallback = 'retry' .*hold, off, embedded or fixed\(K\)"),
        ({"fallback": "fixed(8)"}, r"fallback = 'fixed\(8\)' .*0 to max_draft_tokens, 7"),
        ({"max_num_seqs": 600}, r"max_num_batched_tokens = 512 .*at least max_num_seqs, 600"),
        ({"drain_timeout_s": float("nan")}, r"drain_timeout_s = nan"),
        ({"speed": "fast"}, r"speed"),
    ],
)
def test_bad_option_names_value_and_accepted_range(flags, named):
    with pytest.raises(ConfigError, match=named):
        _load(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"drafter": "none", "max_draft_tokens": 3},
        {"drafter": "none", "fallback": "hold"},
        {"drafter": "none", "scheduler": "in-process"},
        {"scheduler": "auto", "policy": "fixed(1)"},
        {"scheduler": "off", "policy": "fixed(1)"},
        {"scheduler": "off", "profile": "quick"},
        {"scheduler": "off", "profile_dir": "/tmp/x"},
        {"profile": "off", "profile_dir": "/tmp/x"},
        {"drafter": "none", "profile_dir": "/tmp/x"},
        {"profile": "off", "compile_wait_s": 9},
        {"scheduler": "in-process", "compile_wait_s": 9},
        {"device": "cuda", "compile_wait_s": 9},
    ],
)
def test_option_that_cannot_take_effect_is_an_error(flags):
    with pytest.raises(ConfigError, match="no effect"):
        _load(**flags)


def test_a_checkpoint_goes_with_a_drafter_that_is_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json there"):
        _load(drafter="dspark", drafter_checkpoint=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    for drafter in ("none", "ngram"):
        with pytest.raises(ConfigError, match=f"no effect with drafter = {drafter}"):
            _load(drafter=drafter, drafter_checkpoint=str(tmp_path))
    assert _load(drafter="dspark", drafter_checkpoint=str(tmp_path)).drafter == "dspark"


def test_nobody_drafts_so_nobody_is_asked():
    assert _load(drafter="none").effective_scheduler == "off"
    assert _load().effective_scheduler == "auto"


def test_config_and_command_import_no_torch():
    code = (
        "import sys, specsched_executor.config, specsched_executor.commands;"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_of_graphs_need_a_gpu_and_do_not_contradict_each_other():
    assert _load(device="auto", capture_sizes="1,2,64").capture_sizes == [1, 2, 64]
    with pytest.raises(ConfigError, match="capture_sizes has no effect with device = cpu"):
        _load(capture_sizes=[1, 16])
    with pytest.raises(ConfigError, match="enforce_eager has no effect with device = cpu"):
        _load(device="cpu", enforce_eager=True)
    with pytest.raises(ConfigError, match="capture_sizes has no effect with enforce_eager"):
        _load(device="auto", enforce_eager=True, capture_sizes=[1, 16])
    with pytest.raises(ConfigError, match="capture_sizes"):
        _load(device="auto", capture_sizes="few")


def test_what_is_made_up_is_said(tmp_path):
    trace = tmp_path / "trace.npz"
    trace.touch()
    assert _load().synthetic_parts == ()
    both = _load(device="cuda", load_format="dummy", preset="qwen3-8b", acceptance_trace=str(trace))
    assert both.synthetic_parts == ("random weights", "synthetic acceptance")
    with pytest.raises(ConfigError, match="acceptance_trace needs a GPU"):
        _load(acceptance_trace=str(trace))
    for drafter in ("none", "ngram"):
        named = f"acceptance_trace has no effect with drafter = {drafter}: drop one"
        with pytest.raises(ConfigError, match=named):
            _load(device="cuda", drafter=drafter, acceptance_trace=str(trace))
    with pytest.raises(ConfigError, match="no such file"):
        _load(device="cuda", acceptance_trace=str(tmp_path / "none.npz"))
