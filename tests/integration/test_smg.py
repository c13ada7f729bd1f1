"""The real smg gateway from PyPI in front of a real executor, asked through its OpenAI API.

smg tokenizes by itself, with the tokenizer and chat template it fetches from the executor; so its
greedy answers equal those of our own client token for token only if everything on the way is right.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from specsched_client import Client, Completion, Sampling

from tests.integration.processes import ExecutorProcess, start_executor, wait_until

MODEL = "smollm2-under-test"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
REPEATING = [{"role": "user", "content": "List: a1 b2 c3 a1 b2 c3 a1 b2 c3. Continue the list."}]
MAX_TOKENS = 24


class SmgProcess:
    """`smg launch` on free loopback ports, its output kept for failure messages."""

    def __init__(self, worker: str, log_path: Path) -> None:
        self.port, metrics_port = free_port(), free_port()
        self._log_path = log_path
        arguments = {
            "--host": "127.0.0.1",
            "--port": self.port,
            "--prometheus-host": "127.0.0.1",
            "--prometheus-port": metrics_port,
            "--worker-urls": f"grpc://{worker}",
            "--log-level": "debug",
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "smg", "launch", *flat], stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait_until_routing(self) -> None:
        """Wait until the executor's model is offered and smg has its tokenizer: 503 before."""

        def offered() -> bool:
            assert self._process.poll() is None, f"smg ended:\n{self.log}"
            try:
                status, models = self.get("/v1/models")
            except OSError:
                return False
            return status == 200 and MODEL in [model["id"] for model in models["data"]]

        try:
            wait_until(offered, timeout_s=60, interval_s=0.1)
            wait_until(lambda: self.chat(QUESTION, max_tokens=1)[0] != 503, timeout_s=60)
        except TimeoutError:
            pytest.fail(f"smg does not offer {MODEL}:\n{self.log}")

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")[-20_000:]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def get(self, path: str) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def chat(self, messages: list[dict[str, str]], **options: Any) -> tuple[int, Any]:
        """(HTTP status, body) of a chat completion that is not streamed."""
        connection = self.connect()
        try:
            send_chat(connection, messages, **options)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def chat_stream(self, messages: list[dict[str, str]], **options: Any) -> list[Any]:
        """The events of a streamed chat completion, without the closing [DONE]."""
        connection = self.connect()
        try:
            send_chat(connection, messages, stream=True, **options)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            lines = [line.decode().strip() for line in response]
        finally:
            connection.close()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def send_chat(
    connection: http.client.HTTPConnection, messages: list[dict[str, str]], **options: Any
) -> None:
    body = {"temperature": 0, "max_tokens": MAX_TOKENS, **options}
    body |= {"model": MODEL, "messages": messages}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorProcess]:
    run_dir = tmp_path_factory.mktemp("run")
    run_dir.chmod(0o700)
    with start_executor(run_dir, "--served-model-name", MODEL, profile="off") as process:
        yield process


@pytest.fixture(scope="module")
def smg(
    executor: ExecutorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SmgProcess]:
    log_path = tmp_path_factory.mktemp("smg") / "smg.log"
    with SmgProcess(executor.target, log_path) as process:
        process.wait_until_routing()
        yield process


@pytest.fixture(scope="module")
def client(executor: ExecutorProcess) -> Iterator[Client]:
    with Client(executor.target) as opened:
        yield opened


def greedy(client: Client, messages: list[dict[str, str]], **options: Any) -> Completion:
    sampling = Sampling(temperature=0.0, max_tokens=MAX_TOKENS, **options)
    return client.generate(messages, sampling, timeout_s=120)


def test_chat_completion_equals_our_clients(smg: SmgProcess, client: Client) -> None:
    expected = greedy(client, QUESTION)
    status, body = smg.chat(QUESTION)
    assert status == 200, body
    (choice,) = body["choices"]
    assert choice["message"]["content"] == expected.text
    assert choice["finish_reason"] == expected.finish_reason
    assert body["usage"]["prompt_tokens"] == expected.num_prompt_tokens
    assert body["usage"]["completion_tokens"] == expected.num_output_tokens
    assert "Paris" in choice["message"]["content"]


def test_streamed_chat_completion_arrives_in_pieces(smg: SmgProcess, client: Client) -> None:
    expected = greedy(client, QUESTION)
    choices = [event["choices"][0] for event in smg.chat_stream(QUESTION) if event["choices"]]
    pieces = [piece for choice in choices if (piece := choice["delta"].get("content"))]
    assert "".join(pieces) == expected.text
    assert len(pieces) > 1
    assert choices[-1]["finish_reason"] == expected.finish_reason


def test_usage_tells_drafts_accepted_and_rejected(smg: SmgProcess) -> None:
    status, body = smg.chat(REPEATING, max_tokens=48)
    assert status == 200, body
    details = body["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert details["rejected_prediction_tokens"] >= 0


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_arrive_for_every_token(smg: SmgProcess, client: Client, stream: bool) -> None:
    expected = greedy(client, QUESTION, logprobs=3)
    asked = {"logprobs": True, "top_logprobs": 3}
    if stream:
        events = smg.chat_stream(QUESTION, **asked)
        told = [choice.get("logprobs") for event in events for choice in event["choices"]]
        content = [token for each in told if each for token in each["content"]]
    else:
        status, body = smg.chat(QUESTION, **asked)
        assert status == 200, body
        content = body["choices"][0]["logprobs"]["content"]
    # smg leaves out the token that ended the answer, unless it arrived together with others.
    assert expected.finish_reason == "stop"
    num_tokens = len(expected.logprobs)
    assert len(content) in ({num_tokens - 1, num_tokens} if stream else {num_tokens - 1})
    shown = expected.logprobs[: len(content)]
    logprobs = [token["logprob"] for token in content]
    assert logprobs == pytest.approx([each.logprob for each in shown], abs=1e-3)
    tops = [[top["logprob"] for top in token["top_logprobs"]] for token in content]
    assert tops == [pytest.approx([p for _, p in each.top], abs=1e-3) for each in shown]


def test_several_answers_come_back(smg: SmgProcess) -> None:
    status, body = smg.chat(QUESTION, n=3, temperature=1.0, seed=5)
    assert status == 200, body
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in body["choices"]}) > 1


def test_penalties_take_effect(smg: SmgProcess, client: Client) -> None:
    options = {"frequency_penalty": 1.5, "presence_penalty": 0.5}
    status, body = smg.chat(REPEATING, max_tokens=48, **options)
    assert status == 200, body
    sampling = Sampling(temperature=0.0, max_tokens=48, **options)
    expected = client.generate(REPEATING, sampling, timeout_s=120)
    assert body["choices"][0]["message"]["content"] == expected.text
    plain = client.generate(REPEATING, Sampling(temperature=0.0, max_tokens=48), timeout_s=120)
    assert plain.text != expected.text


def test_stop_strings_end_the_answer(smg: SmgProcess) -> None:
    status, body = smg.chat(QUESTION, stop=["Paris"])
    assert status == 200, body
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert "Paris" not in choice["message"]["content"]
    assert "France" in choice["message"]["content"]


def test_equal_seeds_give_equal_answers(smg: SmgProcess) -> None:
    answers = [smg.chat(QUESTION, temperature=1.0, seed=7)[1] for _ in range(2)]
    first, second = (answer["choices"][0]["message"]["content"] for answer in answers)
    assert first == second


def test_concurrent_requests_are_answered_as_if_alone(smg: SmgProcess, client: Client) -> None:
    prompts = [[{"role": "user", "content": f"Count from {n} to {n + 5}."}] for n in range(4)]
    alone = [greedy(client, prompt).text for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = [body for _, body in pool.map(smg.chat, prompts)]
    assert [body["choices"][0]["message"]["content"] for body in together] == alone


def test_what_cannot_take_effect_is_refused_by_name(smg: SmgProcess) -> None:
    status, body = smg.chat(QUESTION, response_format={"type": "json_object"})
    assert status == 400, body
    assert "json_schema" in body["error"]["message"]


def test_a_client_that_leaves_frees_the_executor(smg: SmgProcess, client: Client) -> None:
    story = [{"role": "user", "content": "Tell a very long story."}]
    connection = smg.connect()
    send_chat(connection, story, stream=True, max_tokens=400, ignore_eos=True)
    response = connection.getresponse()
    assert response.readline()
    assert client.server_info().active_requests == 1
    response.close()
    connection.close()
    wait_until(lambda: client.server_info().active_requests == 0, timeout_s=60)


def test_smg_sees_the_executor_as_healthy(smg: SmgProcess, executor: ExecutorProcess) -> None:
    status, workers = smg.get("/workers")
    assert status == 200, workers
    (worker,) = workers["workers"]
    assert worker["url"].endswith(executor.target)
    assert worker["is_healthy"]
