"""The executor process before it serves: what it refuses and how it says so."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import NoReturn

import pytest
from specsched_executor import commands
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import ModelConfig
from specsched_executor.serve import assembly, process
from specsched_executor.serve.readiness import NotReadyError
from specsched_executor.serve.sizes import engine_config
from specsched_protocol.settings import MissingPackageError
from structlog.testing import capture_logs

from tests.integration.tiny_checkpoint import write_tiny_checkpoint

MODEL = ModelConfig(
    name="tiny",
    num_layers=1,
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=8,
    vocab_size=16,
    max_context_tokens=4096,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(),
)


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specsched_executor", "--log-format", "json", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_foreign_model_file_is_refused_by_name(tmp_path):
    path = tmp_path / "not-a-model.gguf"
    path.write_bytes(b"hello")
    result = _run("--model", str(path), "--port", "0")
    assert result.returncode == 2
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_option_is_refused_before_anything_is_loaded(tmp_path):
    result = _run("--host", "0.0.0.0", "--run-dir", str(tmp_path / "run"))
    assert result.returncode == 2
    assert "host = '0.0.0.0'" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_taken_port_is_refused_before_anything_is_loaded(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = _run("--port", address.rpartition(":")[2], "--run-dir", str(tmp_path / "run"))
    assert result.returncode == 2
    assert f"cannot listen on {address}: address already in use" in result.stderr
    assert "model loaded" not in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_what_was_taken_is_given_back_when_a_later_part_cannot_be_made(tmp_path, monkeypatch):
    def broken(*parts, **options):
        raise ValueError("no room for the cache")

    monkeypatch.setattr(assembly, "Engine", broken)
    model = write_tiny_checkpoint(tmp_path / "tiny")
    config = ExecutorConfig(model=model, run_dir=tmp_path / "run", profile="off", port=0)
    with pytest.raises(ValueError, match="no room for the cache"):
        assembly.build_executor(config)
    assert list((tmp_path / "run" / "executors").iterdir()) == []


def test_missing_torch_is_told_with_the_way_to_install_it(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    assert commands.run(ExecutorConfig()) == 5
    assert "pip install 'specsched[executor]'" in capsys.readouterr().err


def test_a_package_that_is_missing_later_has_the_same_status(monkeypatch):
    def build(_: ExecutorConfig) -> NoReturn:
        raise MissingPackageError("device = cuda needs triton")

    monkeypatch.setattr(process, "check_what_is_taken", build)
    config = ExecutorConfig(http_address="off")
    with capture_logs() as logs:
        assert process.serve(config, end=None) == 5
    (log,) = logs
    assert (log["event"], log["reason"]) == ("cannot start", "device = cuda needs triton")


async def _never(*_):
    await asyncio.Event().wait()


async def _fail(*_):
    raise NotReadyError("a first request failed")


@pytest.mark.parametrize(
    ("proof", "ending"),
    [(_never, contextlib.nullcontext()), (_fail, pytest.raises(NotReadyError))],
)
async def test_a_front_end_does_not_outlive_an_executor_that_never_served(
    monkeypatch, proof, ending
):
    stopped = []

    class FrontEnd:
        async def stop(self, grace_s):
            stopped.append(grace_s)

    executor = SimpleNamespace(
        start=lambda on_failure: None,
        engine=None,
        sizes=None,
        loaded=SimpleNamespace(config=MODEL),
    )
    monkeypatch.setattr(process, "_gateway", lambda *_: FrontEnd())
    monkeypatch.setattr(process, "prove_readiness", proof)
    with ending:
        status = await process._run(
            ExecutorConfig(),
            executor,
            tracer=None,
            end=SimpleNamespace(tell=lambda told: told() if proof is _never else None),
            meter=None,
            health=None,
            start=contextlib.ExitStack(),
        )
        assert status == 0
    assert stopped == [0]


@pytest.mark.parametrize(
    ("options", "num_kv_blocks"),
    [
        ({"max_num_seqs": 2, "max_context_tokens": 512}, 2 * 512 // 16),
        ({"max_num_seqs": 16}, 32_768 // 16),  # 16 x 4096 would be more than the default room
        ({"max_num_seqs": 1, "max_context_tokens": 100, "block_size": 16}, 7),
        ({"num_kv_blocks": 5}, 5),
    ],
)
def test_kv_room_follows_from_the_options(options, num_kv_blocks):
    sizes = engine_config(ExecutorConfig(**options), MODEL)
    assert sizes.num_kv_blocks == num_kv_blocks


def test_nobody_drafts_without_a_drafter():
    assert engine_config(ExecutorConfig(drafter="none"), MODEL).max_draft_tokens == 0
