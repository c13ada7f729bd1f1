"""Options of the links to schedulers: accepted values, and refusals that name them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from specsched_executor.config import ExecutorConfig
from specsched_executor.transport.lanes import MAX_LANES
from specsched_protocol.settings import ConfigError, load_settings, settings_command
from specsched_protocol.tcp import TcpAddress
from typer.testing import CliRunner

from tests.certificates import Authority


def load(environ: dict[str, str] | None = None, **flags: object) -> ExecutorConfig:
    return load_settings(ExecutorConfig, flags, environ or {})


@pytest.fixture
def tls(tmp_path) -> dict[str, Path]:
    files = Authority(tmp_path).issue("executor")
    return {
        "scheduler_tls_ca": files.ca,
        "scheduler_tls_cert": files.certificate,
        "scheduler_tls_key": files.key,
    }


def test_the_flag_is_repeated_and_the_variable_has_commas():
    loaded: list[ExecutorConfig] = []
    app = typer.Typer()
    app.command()(
        settings_command(ExecutorConfig, lambda config: loaded.append(config) or 0, doc="x")
    )
    arguments = ["--scheduler-target", "localhost:1", "--scheduler-target", "[::1]:2"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    variable = {"SPECSCHED_EXECUTOR_SCHEDULER_TARGET": "localhost:1,[::1]:2"}
    expected = (TcpAddress("localhost", 1), TcpAddress("::1", 2))
    assert loaded[0].scheduler_addresses == load(variable).scheduler_addresses == expected
    assert CliRunner().invoke(app, []).exit_code == 0
    assert loaded[1].scheduler_addresses == ()


def test_there_are_as_many_targets_as_lanes():
    targets = [f"localhost:{port}" for port in range(1, MAX_LANES + 2)]
    assert len(load(scheduler_target=targets[:-1]).scheduler_addresses) == MAX_LANES
    with pytest.raises(ConfigError, match=f"at most {MAX_LANES}, given are {MAX_LANES + 1}"):
        load(scheduler_target=targets)


def test_other_machines_need_mutual_tls(tls):
    with pytest.raises(ConfigError, match=re.escape("10.0.0.7:50061")) as caught:
        load(scheduler_target=["localhost:1", "10.0.0.7:50061"])
    assert "scheduler_tls_ca, scheduler_tls_cert and scheduler_tls_key" in str(caught.value)
    config = load(scheduler_target=["10.0.0.7:50061"], **tls)
    assert config.scheduler_tls is not None
    assert load(scheduler_target=["localhost:1"]).scheduler_tls is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scheduler_target": ["x"]}, "scheduler_target"),
        ({"scheduler_target": ["localhost:0"]}, "'localhost:0' is no address"),
        ({"scheduler_target": ["localhost:1", "localhost:1"]}, "more than once"),
        ({"scheduler_target": ["localhost:1"], "scheduler": "off"}, "no effect with scheduler"),
        ({"transport": "inline", "scheduler": "in-process"}, "no effect with scheduler"),
        ({"transport": "inline", "drafter": "none"}, "no effect with drafter = none"),
        ({"scheduler_target": ["localhost:1"], "drafter": "none"}, "no effect with drafter = none"),
        ({"transport": "smoke"}, "transport = 'smoke'"),
    ],
)
def test_what_cannot_take_effect_is_named(options, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        load(**options)


def test_tls_files_without_a_target_have_no_effect(tls):
    with pytest.raises(ConfigError, match="no effect without scheduler_target"):
        load(**tls)


def test_shared_memory_does_not_reach_other_machines(tls):
    with pytest.raises(ConfigError, match="accepted: auto or inline"):
        load(scheduler_target=["10.0.0.7:50061"], transport="shared-memory", **tls)


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_part_of_the_tls_files_is_refused(tls, left_out):
    name = list(tls)[left_out]
    del tls[name]
    with pytest.raises(ConfigError, match=f"{name} missing"):
        load(scheduler_target=["localhost:1"], **tls)
