"""Real decoders in overlapping steps: on a CPU without graphs, on CUDA with them."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from specsched_executor.device import GraphSizes
from specsched_executor.device.dspark import DeviceDSpark
from specsched_executor.drafters import NgramDrafter, NoDrafter

from tests.executor.device.models import SMALL, random_decoder, random_drafter
from tests.executor.device.tiny import DeviceDriver
from tests.executor.engine.tiny import Driver, ScriptedTransport, SilentTransport, config

K = 3
GRAPHS = GraphSizes(
    rows=(1, 2, 4, 8, 16), prompt_rows=(16, 32), draft_requests=(1, 2, 4), draft_lens=(2, 3)
)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


RULES = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.5,
    "logit_bias": ((7, 2.0), (11, -3.0)),
    "min_tokens": 9,
    "stop_token_ids": (7,),
}


def spread_budgets(rows, request):
    return request.step_id * 5 % (int(request.num_draft_tokens.sum()) + 1)


def prompts(num: int, length: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(0, SMALL.vocab_size, (num, length), generator=generator).tolist()
    return [prompt * 3 if index % 2 else prompt for index, prompt in enumerate(drawn)]


def run_all(driver, temperature: float = 0.0, num: int = 7) -> list[list[int]]:
    results = [
        driver.submit(prompt, temperature=temperature, seed=seed, max_tokens=24)
        for seed, prompt in enumerate(prompts(num))
    ]
    driver.run()
    assert {result.finish_reason for result in results} == {"length"}
    return [result.token_ids for result in results]


@pytest.fixture(scope="module")
def expected() -> dict[float, list[list[int]]]:
    model = random_decoder(SMALL)
    return {
        temperature: run_all(Driver(model, NoDrafter(), SilentTransport(), config()), temperature)
        for temperature in (0.0, 0.7)
    }


def drafter_of(kind: str, model, sizes):
    if kind == "none":
        return NoDrafter()
    if kind == "ngram":
        return NgramDrafter(K)
    return DeviceDSpark(
        random_drafter(SMALL, K), model, num_slots=sizes.max_num_seqs, max_draft_tokens=K
    )


@pytest.mark.parametrize("graphs", [GRAPHS, GraphSizes()], ids=["graphs", "eager"])
@pytest.mark.parametrize("kind", ["none", "ngram", "dspark"])
@pytest.mark.parametrize("device", DEVICES)
def test_greedy_output_is_that_of_the_cpu(device, kind, graphs, expected) -> None:
    model, sizes = random_decoder(SMALL, device), config()
    driver = DeviceDriver(
        model,
        drafter_of(kind, model, sizes),
        ScriptedTransport(spread_budgets),
        sizes,
        graphs=graphs,
    )
    assert run_all(driver) == expected[0.0]
    stats, counted = driver.loop.stats(), driver.parts.graphs
    assert stats.num_failed_steps == 0
    assert bool(counted.num_replays) == bool(graphs.rows)
    if kind != "none":
        assert stats.num_verified_tokens > 10


@pytest.mark.parametrize("kind", ["none", "ngram"])
@pytest.mark.parametrize("device", DEVICES)
def test_seeded_output_is_that_of_the_cpu(device, kind, expected) -> None:
    model, sizes = random_decoder(SMALL, device), config()
    transport = ScriptedTransport(spread_budgets)
    driver = DeviceDriver(model, drafter_of(kind, model, sizes), transport, sizes, graphs=GRAPHS)
    assert run_all(driver, 0.7) == expected[0.7]


@pytest.mark.parametrize("kind", ["ngram", "dspark"])
@pytest.mark.parametrize("device", DEVICES)
def test_ruled_greedy_output_is_that_of_the_cpu(device, kind) -> None:
    def run(driver) -> list[list[int]]:
        results = [
            driver.submit(prompt, temperature=0.0, max_tokens=24, **(RULES if index % 3 else {}))
            for index, prompt in enumerate(prompts(7))
        ]
        driver.run()
        return [result.token_ids for result in results]

    expected = run(Driver(random_decoder(SMALL), NoDrafter(), SilentTransport(), config()))
    model, sizes = random_decoder(SMALL, device), config(num_kv_blocks=32)
    transport = ScriptedTransport(spread_budgets)
    driver = DeviceDriver(model, drafter_of(kind, model, sizes), transport, sizes, graphs=GRAPHS)
    assert run(driver) == expected
    assert {len(tokens) for tokens in expected} > {24}


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_serves_any_mix_of_verify_lengths(device) -> None:
    """Lengths come from the device: the totals of two steps agree, the lengths do not."""
    model, sizes = random_decoder(SMALL, device), config()
    drafter = drafter_of("dspark", model, sizes)
    transport = ScriptedTransport(lambda rows, request: min(6, int(request.num_draft_tokens.sum())))
    driver = DeviceDriver(model, drafter, transport, sizes, graphs=GRAPHS)
    for prompt in prompts(4):
        driver.submit(prompt, temperature=0.0, max_tokens=60)
    splits = set()
    for _ in range(40):
        driver.loop.step()
        report = transport.reports[-1] if transport.reports else None
        if report is not None and len(report.slot_id) == 4 and report.num_tokens == 10:
            splits.add(tuple(report.num_verified.tolist()))
            assert report.padded_num_tokens == 16
    assert len(splits) > 3
    assert any(len(set(split)) > 1 for split in splits)
    steps = [shape for shape in driver.parts.graphs.num_replays if hasattr(shape, "padded_rows")]
    assert {shape.padded_rows for shape in steps if not shape.has_prompts} <= {1, 2, 4, 8, 16}
    assert not driver.parts.graphs.num_eager


@pytest.fixture
def sync_error_mode():
    """Calls that synchronise raise, from the call of this on; waiting for an event is no such."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_step_synchronises(temperature, sync_error_mode) -> None:
    model, sizes = random_decoder(SMALL, "cuda"), config()
    drafter = drafter_of("dspark", model, sizes)
    transport = ScriptedTransport(spread_budgets)
    driver = DeviceDriver(model, drafter, transport, sizes, graphs=GRAPHS)
    results = [
        driver.submit(prompt, temperature=temperature, seed=seed, max_tokens=40, **rules)
        for seed, (prompt, rules) in enumerate(zip(prompts(7), cycle([{}, RULES]), strict=False))
    ]
    for _ in range(4):
        driver.loop.step()
    sync_error_mode()
    driver.run()
    stats = driver.loop.stats()
    assert stats.num_failed_steps == 0
    assert {result.finish_reason for result in results} <= {"length", "stop"}
