"""Several outputs of one request."""

import threading

import pytest
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine import Engine
from specsched_executor.sampling import derived_seed

from tests.executor.engine.tiny import (
    Driver,
    Result,
    SilentTransport,
    TableTarget,
    config,
    random_table,
)

VOCAB = 6
PROMPT = (1, 2, 1)


class Outputs:
    """A sink that keeps the outputs of one request apart."""

    def __init__(self, num_outputs: int) -> None:
        self.results = [Result() for _ in range(num_outputs)]
        self.are_done = threading.Event()

    def __call__(self, delta) -> None:
        self.results[delta.index](delta)
        if all(result.finish_reason for result in self.results):
            self.are_done.set()


@pytest.fixture
def engine():
    target = TableTarget(random_table(VOCAB, 0), max_context_tokens=100_000)
    made = Engine(target, NgramDrafter(3), SilentTransport(), config(num_kv_blocks=30_000))
    made.start()
    yield made
    made.stop()


def submit(engine, request_id: str, **sampling) -> Outputs:
    params = SamplingParams(**sampling)
    outputs = Outputs(params.n)
    engine.submit(GenerationRequest(request_id, PROMPT, params), outputs)
    return outputs


def alone(seed: int, **sampling) -> list[int]:
    driver = Driver(
        TableTarget(random_table(VOCAB, 0)), NgramDrafter(3), SilentTransport(), config()
    )
    result = driver.submit(PROMPT, seed=seed, **sampling)
    driver.run()
    return result.token_ids


def test_each_output_is_what_its_own_seed_gives(engine):
    outputs = submit(engine, "five", n=5, seed=11, max_tokens=25)
    assert outputs.are_done.wait(30)
    found = [result.token_ids for result in outputs.results]
    assert found == [alone(derived_seed(11, index), max_tokens=25) for index in range(5)]
    assert found[0] == alone(11, max_tokens=25)
    assert len({tuple(tokens) for tokens in found}) == 5


def test_outputs_without_a_seed_differ(engine):
    outputs = submit(engine, "two", n=2, max_tokens=40)
    assert outputs.are_done.wait(30)
    first, second = (result.token_ids for result in outputs.results)
    assert first != second


def test_outputs_end_each_at_its_own_time_and_the_id_is_free_after_the_last(engine):
    outputs = submit(engine, "a", n=4, seed=3, max_tokens=60, stop_token_ids=(4,))
    assert outputs.are_done.wait(30)
    assert len({len(result.token_ids) for result in outputs.results}) > 1
    again = submit(engine, "a", n=1, max_tokens=1)
    assert again.are_done.wait(30)


def test_abort_ends_all_outputs(engine):
    outputs = submit(engine, "a", n=6, max_tokens=90_000)
    assert engine.abort("a")
    assert outputs.are_done.wait(30)
    assert [result.finish_reason for result in outputs.results] == ["abort"] * 6
    assert not engine.abort("a")


def test_stop_ends_all_outputs(engine):
    outputs = submit(engine, "a", n=6, max_tokens=90_000)
    engine.stop()
    assert [result.finish_reason for result in outputs.results] == ["abort"] * 6
