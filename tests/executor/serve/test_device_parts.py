"""What is brought onto a device for serving, on a device that is the CPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import DraftInput, GenerationRequest, SamplingParams
from specsched_executor.device.memory import blocks_that_fit
from specsched_executor.drafters import NoDrafter
from specsched_executor.engine import Engine
from specsched_executor.model import LoadOptions, load_model
from specsched_executor.serve import assembly, device_parts
from specsched_executor.serve.cost import cost_message
from specsched_executor.serve.device_parts import build_parts, device_engine_config, graph_sizes
from specsched_executor.serve.sizes import engine_config
from specsched_executor.transport.none import NoTransport
from structlog.testing import capture_logs

from tests.integration.tiny_checkpoint import write_tiny_checkpoint

OPTIONS = {
    "drafter": "ngram",
    "max_draft_tokens": 3,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_context_tokens": 128,
    "profile": "full",
    "fallback": "fixed(3)",
    "device": "auto",
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    yield load_model(folder, LoadOptions(max_context_tokens=128))
    torch.set_num_threads(before)


def options(**changes) -> ExecutorConfig:
    return ExecutorConfig(**(OPTIONS | changes))


def run(engine: Engine, sampling: SamplingParams) -> list[int]:
    """The output for a prompt that an ngram drafter finds something in."""
    tokens: list[int] = []
    done = threading.Event()

    def sink(delta):
        tokens.extend(delta.token_ids)
        if delta.finish_reason is not None:
            done.set()

    engine.submit(GenerationRequest("a", (7, 8, 9) * 8, sampling), sink)
    engine.start(done.set)
    assert done.wait(200)
    engine.stop()
    return tokens


@pytest.fixture(scope="module")
def sparse():
    """Sparse latent attention and experts."""
    return load_model(options=LoadOptions(max_context_tokens=128, is_dummy=True, preset="tiny"))


@pytest.mark.parametrize("kind", ["loaded", "sparse"])
@pytest.mark.parametrize("changes", [{}, {"enforce_eager": True}], ids=["captured", "eager"])
def test_an_engine_on_a_device_serves_what_one_on_the_host_does(request, kind, changes):
    loaded, config = request.getfixturevalue(kind), options(**changes)
    sizes = engine_config(config, loaded.config)
    parts = build_parts(config, loaded, sizes)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    on_device = Engine(loaded.model, NoDrafter(), NoTransport(), sizes, device=parts)
    on_host = Engine(loaded.model, NoDrafter(), NoTransport(), sizes)
    assert run(on_device, sampling) == run(on_host, sampling)
    assert on_device.stats().num_verified_tokens > 0
    assert bool(parts.graphs.num_replays) != config.enforce_eager


def first_draft() -> DraftInput:
    """Of the first request in the first slot, whose history has nothing to look up."""
    return DraftInput(
        step_id=1,
        slot_ids=torch.tensor([0]),
        generations=torch.tensor([1]),
        histories=(np.array([5, 6, 7], dtype=np.int32),),
        max_draft_tokens=torch.tensor([3]),
        temperatures=torch.zeros(1),
        seeds=torch.zeros(1, dtype=torch.int64),
    )


def test_costs_are_those_of_graphs_and_of_eager_steps_beyond_them(loaded):
    config = options(capture_sizes=[1, 2, 4, 8])
    sizes = engine_config(config, loaded.config)
    with capture_logs() as logs:
        parts = build_parts(config, loaded, sizes)
    warning = next(log for log in logs if log["log_level"] == "warning")
    assert (warning["rows"], warning["largest_graph"]) == (16, 8)
    message = cost_message(config, loaded, sizes, parts)
    assert message.capture_limit == 8
    rows = [point.tokens for point in message.verify]
    assert rows == [1, 2, 4, 8, 9, 12, 16, 32]
    assert all(ms > 0 for point in message.verify for ms in point.ms)
    assert [point.requests for point in message.draft] == [1, 4]
    replayed = {shape.padded_rows for shape in parts.graphs.num_replays}
    eager = {shape.padded_rows for shape in parts.graphs.num_eager}
    assert replayed >= {1, 2, 4, 8}
    assert eager == {9, 12, 16, 32}
    # What is served afterwards finds no trace of it.
    assert parts.host_drafter.draft(first_draft()).num_draft_tokens.tolist() == [0]
    assert not parts.step.tables.generations.any()
    assert (parts.step.inputs.arrays["slot_ids"] == -1).all()


def test_options_lead_to_an_engine_on_the_device(loaded, monkeypatch):
    monkeypatch.setattr(
        assembly, "choose_device", lambda config: config.model_copy(update={"device": "cuda"})
    )
    monkeypatch.setattr(assembly, "_load", lambda config: loaded)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 31))
    executor = assembly.build_executor(
        options(profile="quick", scheduler="in-process", fallback="hold", port=0, num_threads=1)
    )
    try:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=24, ignore_eos=True, repetition_penalty=0.9, min_tokens=9
        )
        assert len(run(executor.engine, sampling)) == 24
        assert executor.engine.stats().num_verified_tokens > 0
    finally:
        executor.stop()


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ([4, 2, 8], r"capture_sizes is \[4, 2, 8\]; accepted: rising sizes"),
        ([1, 2], r"capture_sizes is \[1, 2\]; accepted: the largest at least max_num_seqs, 4"),
        ([1, 64], r"capture_sizes holds 64; accepted: 1 to max_num_batched_tokens, 32"),
    ],
)
def test_capture_sizes_that_cannot_serve_are_refused(sizes, named):
    with pytest.raises(ValueError, match=named):
        graph_sizes(options(capture_sizes=sizes), max_draft_tokens=3)


@pytest.mark.parametrize(
    ("longest", "lens"), [(7, (1, 2, 3, 4, 5, 6, 7)), (12, (1, 2, 3, 6, 12)), (1, (1,))]
)
def test_short_drafts_are_captured_in_every_length_long_ones_ever_half_as_long(longest, lens):
    assert graph_sizes(options(), max_draft_tokens=longest).draft_lens == lens


def test_blocks_are_of_the_size_that_the_model_takes(loaded, sparse):
    assert engine_config(options(), sparse.config).block_size == 64
    assert engine_config(options(block_size=64), sparse.config).block_size == 64
    assert engine_config(options(block_size=32), loaded.config).block_size == 32
    with pytest.raises(ValueError, match="block_size = 16 cannot be had with tiny; accepted: 64"):
        engine_config(options(block_size=16), sparse.config)


def test_memory_that_is_missing_is_told_with_the_option_that_lowers_it(loaded):
    config = options(num_kv_blocks=1000)
    sizes = engine_config(config, loaded.config)
    block_bytes = 2 * 2 * 16 * 2 * 8 * 4  # keys, values: layers, tokens, heads, width, float32
    table_bytes = device_parts._memory(config, loaded, sizes).table_bytes
    with pytest.raises(
        ValueError, match=r"= 1000 .* rules on logits .* missing; lower num_kv_blocks"
    ):
        device_engine_config(config, loaded, sizes, 999 * block_bytes + table_bytes)
    enough = device_engine_config(config, loaded, sizes, 1000 * block_bytes + table_bytes)
    assert enough.num_kv_blocks == 1000


def test_the_cache_takes_what_is_free_and_no_more_than_all_requests_need(loaded):
    config = options()
    sizes = engine_config(config, loaded.config)
    roomy = device_engine_config(config, loaded, sizes, 1 << 40)
    assert roomy.num_kv_blocks == 4 * 128 // 16
    plan = device_parts._memory(config, loaded, sizes)
    assert plan.rule_bytes > 0
    free_bytes = plan.table_bytes + 20 * plan.block_bytes
    tight = device_engine_config(config, loaded, sizes, free_bytes)
    assert tight.num_kv_blocks == blocks_that_fit(plan, free_bytes) == 16


def test_memory_that_ends_while_graphs_are_captured_names_what_to_lower(loaded, monkeypatch):
    def exhausted(*parts):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")

    monkeypatch.setattr(device_parts, "build_device_parts", exhausted)
    config = options()
    named = r"lower num_kv_blocks, max_num_seqs or capture_sizes, or set enforce_eager.*2.00 GiB$"
    with pytest.raises(ValueError, match=named):
        build_parts(config, loaded, engine_config(config, loaded.config))


def test_a_recording_that_cannot_be_read_is_refused_before_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "_load", lambda config: pytest.fail("the model was loaded"))
    trace = tmp_path / "trace.npz"
    trace.write_bytes(b"nothing")
    config = options(
        drafter="dspark", acceptance_trace=trace, run_dir=tmp_path / "run", profile="off", port=0
    )
    with pytest.raises(ValueError, match=r"trace\.npz is no \.npz archive of plain arrays"):
        assembly.build_executor(config)
