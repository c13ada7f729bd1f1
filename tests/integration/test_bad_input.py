"""Bad input as its user meets it: the message names the value and what is accepted.

All the while another client asks the same executor the same greedy question, and gets the same
answer every time. Real processes; the model is tiny and random.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_client import Client, Sampling
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as scheduler_pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub

from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    start_scheduler,
    wait_until,
)
from tests.integration.tiny_checkpoint import write_tiny_checkpoint
from tests.scheduler_service.service.support import AttachCall, SharedMemoryExecutor

pytestmark = pytest.mark.slow

CONTEXT, KV_TOKENS, VOCAB_SIZE = 512, 320, 257
QUESTION = "one two three one two three one two"
GREEDY = Sampling(temperature=0.0, max_tokens=40, ignore_eos=True)
PAUSE_S = 0.5
"""Between questions while a test goes on: most of a command's time is its own start."""


@dataclass(frozen=True)
class Site:
    """Where bad input goes, beside a client that must not notice."""

    model: Path
    run_dir: Path
    executor: ExecutorProcess
    scheduler: SchedulerProcess


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    model = write_tiny_checkpoint(root / "tiny")
    options = ("--model", str(model), "--num-kv-blocks", str(KV_TOKENS // 16))
    with (
        start_scheduler(root / "run") as scheduler,
        start_executor(root / "run", *options) as executor,
    ):
        executor.wait_until_attached()
        yield Site(model, root / "run", executor, scheduler)


@pytest.fixture(autouse=True)
def undisturbed(site: Site) -> Iterator[None]:
    """Asks from the beginning of each test to its end; every answer must be the first one.

    The second question is on its way as the test begins.
    """
    stop, answers = threading.Event(), []

    def keep_asking() -> None:
        with Client(site.executor.target) as client:
            while not stop.is_set() or len(answers) < 2:
                answers.append(client.generate(QUESTION, GREEDY, timeout_s=60).token_ids)
                if len(answers) > 1:
                    stop.wait(PAUSE_S)

    thread = threading.Thread(target=keep_asking)
    thread.start()
    wait_until(lambda: bool(answers) or not thread.is_alive())
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert len(answers) >= 2
    assert len(set(answers)) == 1
    assert len(answers[0]) == GREEDY.max_tokens


def complaint(text: str, *words: str) -> None:
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"
    assert "Traceback" not in text


# ===================== Requests =====================

BAD_REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, str]]] = {
    # name: (fields of the request, of its sampling, (the value, what is accepted))
    "prompt longer than the context": (
        {"ids": [1] * CONTEXT},
        {},
        ("512 tokens", "at most 511"),
    ),
    "prompt and output beyond the KV cache": (
        {"ids": [1] * 200},
        {"max_tokens": 200},
        ("400 tokens", "at most 321"),
    ),
    "id outside the vocabulary": ({"ids": [1, VOCAB_SIZE]}, {}, ("257", "0 to 256")),
    "empty prompt": ({"ids": []}, {}, ("empty", "1 token or more")),
    "empty text": ({"text": ""}, {}, ("empty", "1 token or more")),
    "no prompt": ({}, {}, ("unset", "tokenized or text")),
    "negative temperature": ({}, {"temperature": -0.5}, ("-0.5", "0 (greedy) or a positive")),
    "temperature that is no number": (
        {},
        {"temperature": float("nan")},
        ("nan", "0 (greedy) or a positive"),
    ),
    "negative top_p": ({}, {"top_p": -0.5}, ("-0.5", "above 0 and at most 1")),
    "top_p above 1": ({}, {"top_p": 1.5}, ("1.5", "above 0 and at most 1")),
    "max_tokens 0": ({}, {"max_tokens": 0}, ("max_tokens is 0", "1 or more")),
    "min_tokens above max_tokens": (
        {},
        {"min_tokens": 9, "max_tokens": 3},
        ("min_tokens is 9", "at most max_tokens (3)"),
    ),
    "stop id outside the vocabulary": ({}, {"stop_token_ids": [999]}, ("999", "0 to 256")),
    "constraint that cannot take effect": ({}, {"regex": "a*"}, ("regex", "leave it unset")),
    "rank that does not exist": ({"data_parallel_rank": 3}, {}, ("= 3", "0 or unset")),
}


def _request(fields: dict[str, Any], sampling: dict[str, Any]) -> pb.GenerateRequest:
    is_empty = not fields and not sampling
    fields = dict(fields) if is_empty or "text" in fields else {"ids": [1, 2]} | fields
    if "ids" in fields:
        fields["tokenized"] = pb.TokenizedInput(input_ids=fields.pop("ids"))
    return pb.GenerateRequest(sampling_params=pb.SamplingParams(**sampling), **fields)


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_request(site: Site, name: str) -> None:
    fields, sampling, words = BAD_REQUESTS[name]
    with grpc.insecure_channel(site.executor.target) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(_request(fields, sampling), timeout=30))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    complaint(caught.value.details(), *words)


def test_duplicate_request_id(site: Site) -> None:
    with grpc.insecure_channel(site.executor.target) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        fields = {"request_id": "twice", "ids": [1, 2], "stream": True}
        request = _request(fields, {"max_tokens": 300, "ignore_eos": True})
        first = stub.Generate(request, timeout=60)
        next(first)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=30))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        complaint(caught.value.details(), "'twice'", "accepted: an id that no open request has")
        assert list(first)[-1].complete.completion_tokens == 300
        assert list(stub.Generate(request, timeout=60))[-1].HasField("complete")


BAD_POLICIES: dict[str, tuple[plan_pb2.PolicySpec, tuple[str, str]]] = {
    "unknown": (plan_pb2.PolicySpec(name="oracle"), ("'oracle'", "known: throughput")),
    "unknown parameter": (
        plan_pb2.PolicySpec(name="fixed", parameters={"depth": 1}),
        ("'depth'", "accepted: k"),
    ),
    "missing parameter": (plan_pb2.PolicySpec(name="fixed"), ("fixed", "fixed(k=1)")),
    "out of range": (
        plan_pb2.PolicySpec(name="threshold", parameters={"p": 2}),
        ("p = 2", "in 0..1"),
    ),
    "more than anybody drafts": (
        plan_pb2.PolicySpec(name="fixed", parameters={"k": 9}),
        ("k = 9", "accepted: 0 to 7"),
    ),
}


@pytest.mark.parametrize("name", BAD_POLICIES)
def test_policy(site: Site, name: str) -> None:
    spec, words = BAD_POLICIES[name]
    with grpc.insecure_channel(site.scheduler.target) as channel:
        stub = SchedulerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.SetPolicy(scheduler_pb.SetPolicyRequest(policy=spec), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    complaint(caught.value.details(), *words)


# ===================== The command line =====================


def _truncated(site: Site, folder: Path) -> str:
    shutil.copytree(site.model, folder / "m")
    weights = folder / "m" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return str(folder / "m")


def _foreign_architecture(site: Site, folder: Path) -> str:
    shutil.copytree(site.model, folder / "m")
    path = folder / "m" / "config.json"
    config = json.loads(path.read_text()) | {"architectures": ["MambaForCausalLM"]}
    path.write_text(json.dumps(config))
    return str(folder / "m")


def _foreign_file(site: Site, folder: Path) -> str:
    (folder / "m.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    return str(folder / "m.gguf")


def _writable(site: Site, folder: Path) -> str:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    return str(folder / "open")


def _too_long(site: Site, folder: Path) -> str:
    return str(folder / ("x" * 100))


def _no_json(site: Site, folder: Path) -> str:
    (folder / "plan.json").write_text("{")
    return str(folder / "plan.json")


def _target(site: Site, folder: Path) -> str:
    return site.executor.target


def _run_dir(site: Site, folder: Path) -> str:
    return str(site.run_dir)


def _model(site: Site, folder: Path) -> str:
    return str(site.model)


Maker = Callable[[Site, Path], str]
TO_EXECUTOR = ("generate", "hello", "--target", _target)
TO_SCHEDULER = ("policy", "set", "--run-dir", _run_dir)
EXECUTOR = ("executor", "--profile", "off", "--port", "0")

BAD_COMMANDS: dict[str, tuple[tuple[str | Maker, ...], tuple[str, str]]] = {
    # name: (arguments, (the value, what is accepted))
    "negative temperature": ((*TO_EXECUTOR, "--temperature", "-1"), ("-1.0", ">= 0")),
    "top_p 0": ((*TO_EXECUTOR, "--top-p", "0"), ("top_p = 0.0", "more than 0, at most 1")),
    "max_tokens 0": ((*TO_EXECUTOR, "--max-tokens", "0"), ("max_tokens = 0", "1 to 4294967295")),
    "prompt longer than the context": (
        ("generate", "x" * 600, "--target", _target),
        ("600 tokens", "at most 511"),
    ),
    "empty prompt": (("generate", "", "--target", _target), ("empty", "accepted: text")),
    "option without effect": (
        (*TO_EXECUTOR, "--raw", "--system", "x"),
        ("--system", "drop one of them"),
    ),
    "unknown option": ((*TO_EXECUTOR, "--speed", "9"), ("--speed", "--help")),
    "unknown policy": ((*TO_SCHEDULER, "oracle"), ("'oracle'", "known: throughput")),
    "policy that cannot be read": ((*TO_SCHEDULER, "fixed("), ("'fixed('", "accepted: NAME")),
    "policy beyond k": ((*TO_SCHEDULER, "fixed(k=9)"), ("k = 9", "accepted: 0 to 7")),
    "unknown scheduler": (
        (*TO_SCHEDULER, "off", "--scheduler", "v9"),
        ("v9", "present: default"),
    ),
    "plan that is no JSON": (("plan", _no_json), ("plan.json", "JSON")),
    "run directory others can write, client": (
        ("policy", "get", "--run-dir", _writable),
        ("mode 0777", "use 0700"),
    ),
    "run directory others can write, scheduler": (
        ("scheduler", "--run-dir", _writable),
        ("mode 0777", "use 0700"),
    ),
    "run directory others can write, executor": (
        (*EXECUTOR, "--run-dir", _writable, "--model", _model),
        ("mode 0777", "use 0700"),
    ),
    "socket path too long, scheduler": (
        ("scheduler", "--run-dir", _too_long),
        ("x" * 100, "at most 107"),
    ),
    "socket path too long, executor": (
        (*EXECUTOR, "--run-dir", _too_long, "--model", _model),
        ("x" * 100, "at most 107"),
    ),
    "policy at the start": (
        ("scheduler", "--run-dir", _run_dir, "--policy", "oracle"),
        ("'oracle'", "known: throughput"),
    ),
    "policy at the start that no executor can follow": (
        ("scheduler", "--run-dir", _run_dir, "--name", "other", "--policy", "fixed(99)"),
        ("k = 99", "an integer in 0..64"),
    ),
    "policy of the executor's own scheduler": (
        (*EXECUTOR[:3], "--scheduler", "in-process", "--policy", "fixed(9)", "--model", _model),
        ("k = 9", "accepted: 0 to 7"),
    ),
    "target without a port": (
        ("status", "--target", "localhost", "--run-dir", _run_dir),
        ("target 'localhost'", "accepted: host:port"),
    ),
    "negative time limit": (
        ("status", "--target", _target, "--run-dir", _run_dir, "--timeout", "-1"),
        ("-1.0", "accepted: more than 0"),
    ),
    "name in use": (
        ("scheduler", "--run-dir", _run_dir),
        ("default.sock", "another --name"),
    ),
    "option out of range": (
        (*EXECUTOR, "--max-draft-tokens", "99"),
        ("max_draft_tokens = 99", ">= 1 and <= 16"),
    ),
    "option of the executor without effect": (
        (*EXECUTOR[:3], "--drafter", "none", "--fallback", "hold"),
        ("fallback has no effect with drafter = none", "drop one of them"),
    ),
    "unknown drafter": ((*EXECUTOR, "--drafter", "oracle"), ("oracle", "ngram")),
    "missing model": (
        (*EXECUTOR, "--model", "/nowhere/m.gguf"),
        ("/nowhere/m.gguf", "accepted: a GGUF file or a Hugging Face folder"),
    ),
    "truncated model": ((*EXECUTOR, "--model", _truncated), ("model.safetensors", "truncated")),
    "foreign file": ((*EXECUTOR, "--model", _foreign_file), ("PK", "a GGUF file with b'GGUF'")),
    "foreign architecture": (
        (*EXECUTOR, "--model", _foreign_architecture),
        ("MambaForCausalLM", "LlamaForCausalLM"),
    ),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_command(site: Site, tmp_path: Path, name: str) -> None:
    arguments, words = BAD_COMMANDS[name]
    made = [each if isinstance(each, str) else each(site, tmp_path) for each in arguments]
    if "--run-dir" not in made and made[0] == "executor":
        made += ["--run-dir", str(tmp_path / "run")]
    if "--port" not in made and made[0] == "executor":
        made += ["--port", "0"]  # somebody's executor may have the default one
    ended = subprocess.run(
        [Path(sys.executable).with_name("specsched"), *made],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"COLUMNS": "1000", "NO_COLOR": "1"},
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    complaint(ended.stderr, *words)


def test_variable_that_is_no_option(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "specsched_executor", "--run-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"SPECSCHED_EXECUTOR_SPEED": "9"},
    )
    assert ended.returncode == 2
    complaint(ended.stderr, "SPECSCHED_EXECUTOR_SPEED", "known: ", "SPECSCHED_EXECUTOR_PORT")


# ===================== Shared memory =====================

BAD_REGIONS: dict[str, tuple[Callable[[SharedMemoryExecutor, Any], None], tuple[str, str]]] = {
    # name: (what is wrong with it, (the value, what is expected))
    "magic": (lambda it, offer: _write(it, 0, 0x1234), ("magic", "expected")),
    "version": (lambda it, offer: _write(it, 1, 99), ("version 99", "expected")),
    "size": (lambda it, offer: _write(it, 4, 4096), ("4096", "expected")),
    "announced version": (
        lambda it, offer: setattr(offer.shared_memory, "abi_version", 99),
        ("ABI version 99", "expected"),
    ),
    "announced size": (
        lambda it, offer: setattr(offer.shared_memory, "executor_region_bytes", 64),
        ("announced as 64", "the file has"),
    ),
}


def _write(executor: SharedMemoryExecutor, word: int, value: int) -> None:
    executor.transport._region.words[word] = value


@pytest.mark.parametrize("name", BAD_REGIONS)
async def test_region(site: Site, tmp_path: Path, name: str) -> None:
    spoil, words = BAD_REGIONS[name]
    with SharedMemoryExecutor(RunDir.open(tmp_path / "run")) as executor:
        offer = executor.transport.open_lane()
        spoil(executor, offer)
        async with grpc.aio.insecure_channel(site.scheduler.target) as channel:
            stream = AttachCall(SchedulerServiceStub(channel))
            await stream.send(hello=executor.hello(offer))
            code, details = await stream.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    complaint(details, *words)
