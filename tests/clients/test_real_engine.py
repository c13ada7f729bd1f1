"""The client against a real engine over a tiny target: what the options bring comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specsched_client import Client, InvalidRequestError, Sampling, ServerError
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine import Engine

from tests.clients.conftest import Run
from tests.executor.engine.tiny import SilentTransport, TableTarget, config, random_table
from tests.executor.gateway.fakes import WORDS, serving_in_thread

POISON = WORDS.index("bye")


@pytest.fixture(scope="module")
def target() -> TableTarget:
    made = TableTarget(random_table(len(WORDS), 2), max_context_tokens=64)
    made.logits[POISON, POISON] = torch.nan
    return made


@pytest.fixture(scope="module")
def address(target: TableTarget) -> Iterator[str]:
    engine: Any = Engine(target, NgramDrafter(3), SilentTransport(), config(num_kv_blocks=256))
    engine.start()
    with serving_in_thread(engine) as served:
        yield served
    engine.stop()


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    with Client(address) as opened:
        yield opened


def test_n_outputs_come_back_in_order_and_streamed_alike(client: Client) -> None:
    sampling = Sampling(n=3, seed=5, max_tokens=12)
    whole = client.generate_all("hello world", sampling)
    assert [completion.index for completion in whole] == [0, 1, 2]
    assert len({completion.token_ids for completion in whole}) == 3
    assert (
        whole[0].token_ids
        == client.generate("hello world", Sampling(seed=5, max_tokens=12)).token_ids
    )
    streamed = dict.fromkeys(range(3), "")
    ends = {}
    for delta in client.stream("hello world", sampling):
        streamed[delta.index] += delta.text or ""
        if delta.completion is not None:
            ends[delta.index] = delta.completion
    assert [streamed[index] for index in range(3)] == [completion.text for completion in whole]
    assert [ends[index].token_ids for index in range(3)] == [c.token_ids for c in whole]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_output_and_prompt(client: Client, target: TableTarget, stream: bool) -> None:
    sampling = Sampling(seed=3, max_tokens=9, logprobs=2, prompt_logprobs=1, presence_penalty=0.5)
    if stream:
        completion = list(client.stream([3, 4, 3], sampling))[-1].completion
    else:
        completion = client.generate([3, 4, 3], sampling)
    assert completion is not None
    told = [each for each in completion.prompt_logprobs if each] + list(completion.logprobs)
    sequence = [3, 4, 3, *completion.token_ids]
    assert completion.prompt_logprobs[0] is None
    assert [each.token_id for each in told] == sequence[1:]
    table = target.logits.log_softmax(-1)
    for position, each in enumerate(told):
        before = sequence[max(0, position - 1)], sequence[position]
        assert each.logprob == pytest.approx(float(table[before][each.token_id]), abs=1e-5)
        assert each.top[0][0] == int(table[before].argmax())
    assert {len(each.top) for each in completion.logprobs} == {2}


def test_a_request_with_logits_that_are_not_numbers_gets_a_clear_error(client: Client) -> None:
    sound = client.stream([3, 4, 3], Sampling(seed=1, max_tokens=30))
    assert next(sound)
    with pytest.raises(ServerError, match="logits for this request are not finite"):
        client.generate([3, POISON, POISON], Sampling(max_tokens=5))
    *_, last = sound
    assert last.completion is not None
    alone = client.generate([3, 4, 3], Sampling(seed=1, max_tokens=30))
    assert last.completion.token_ids == alone.token_ids


def test_generate_is_for_one_output(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"n = 2; accepted: 1, or more with generate_all"):
        client.generate("hello", Sampling(n=2))


def test_the_server_names_what_only_it_can_judge(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias holds token id 99; accepted: 0 to 7"):
        client.generate("hello", Sampling(logit_bias={99: 1.0}))


def test_the_command_line_shows_every_output(run: Run, address: str) -> None:
    options = "--raw --n 2 --seed 4 --max-tokens 5 --logprobs 1 --prompt-logprobs 0 --json"
    code, out, _ = run("generate", "hello world", "good", "--target", address, *options.split())
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    told = sorted((answer["index"], answer["output_index"]) for answer in answers)
    assert told == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for answer in answers:
        assert [each["token_id"] for each in answer["logprobs"]] == answer["token_ids"]
        assert all(len(each["top"]) == 1 and each["logprob"] <= 0 for each in answer["logprobs"])
        assert answer["prompt_logprobs"][0] is None
    plain = ["--raw", "--n", "2", "--seed", "4", "--max-tokens", "5"]
    code, out, _ = run("generate", "hello world", "--target", address, *plain)
    assert code == 0
    assert out.startswith("--- [1/2] hello world\n")
    assert "--- [2/2] hello world\n" in out


def test_options_reach_the_engine_and_change_the_output(run: Run, address: str) -> None:
    options = "--raw --json --temperature 0 --max-tokens 6 --target"
    _, plain, _ = run("generate", "hello", *options.split(), address)
    biased = "--logit-bias 4=100 --logit-bias 5=-100 --min-p 0.5 --frequency-penalty 0.1"
    _, ruled, _ = run("generate", "hello", *biased.split(), *options.split(), address)
    # The engine is in this process: a line that it logs may come first.
    plain_text, ruled_text = (json.loads(out.splitlines()[-1])["text"] for out in (plain, ruled))
    assert ruled_text == " ".join(["world"] * 6)
    assert plain_text != ruled_text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--min-p 1.5", "min_p = 1.5; accepted: 0"),
        ("--repetition-penalty 0", "repetition_penalty = 0.0; accepted: 0.01 to 100"),
        ("--presence-penalty 3", "presence_penalty = 3.0; accepted: -2 to 2"),
        ("--frequency-penalty nan", "frequency_penalty = nan; accepted: -2 to 2"),
        ("--logit-bias 5", "--logit-bias '5'; accepted: TOKEN_ID=BIAS"),
        ("--logit-bias 5=101", "logit_bias = {5: 101.0}; accepted: token ids >= 0 with -100"),
        ("--n 0", "n = 0; accepted: 1 to 128"),
        ("--logprobs 21 --json", "logprobs = 21; accepted: 0 to 20"),
        ("--prompt-logprobs -1 --json", "prompt_logprobs = -1; accepted: 0 to 20"),
        ("--logprobs 1", "shown by --json only"),
    ],
)
def test_bad_options_are_refused_by_value(run: Run, options: str, message: str) -> None:
    code, _, error = run("generate", "hello", *options.split())
    assert code != 0
    assert message in " ".join(error.split())
