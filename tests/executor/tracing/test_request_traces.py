"""Spans of the real gateway over a real engine, kept by the SDK's exporter in memory."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine import Engine
from specsched_executor.gateway import GatewayConfig, build_server
from specsched_executor.tracing import open_telemetry, open_tracer
from specsched_executor.tracing.open_telemetry import OpenTelemetryTracer
from specsched_executor.tracing_config import TracingConfig
from specsched_protocol.settings import ConfigError, MissingPackageError, load_settings

from tests.executor.engine.tiny import SilentTransport, TableTarget, config, random_table
from tests.executor.gateway.fakes import MODEL, FakeEngine, WordTokenizer, eventually

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
PARTS = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter")
PROMPT = "good bye hello world"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def engine() -> Iterator[Engine]:
    target = TableTarget(random_table(8, 0), max_context_tokens=64)
    engine = Engine(target, NgramDrafter(3), SilentTransport(), config(num_kv_blocks=400))
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Every line, down to `debug`, with what is bound to it. Comes before whatever logs."""
    kept: list[dict[str, Any]] = []

    def keep(_logger: object, _name: str, line: dict[str, Any]) -> dict[str, Any]:
        kept.append(dict(line))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
    )
    yield kept
    structlog.configure(**before)


async def connect(engine: object, provider: TracerProvider) -> AsyncIterator[object]:
    tracer = OpenTelemetryTracer(provider, MODEL.name)
    gateway = build_server(engine, MODEL, WordTokenizer(), GatewayConfig(port=0), tracer=tracer)  # type: ignore[arg-type]
    await gateway.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        yield vllm_engine_pb2_grpc.VllmEngineStub(channel)
    await gateway.stop(grace_s=0)


@pytest.fixture
async def stub(engine: Engine, provider: TracerProvider) -> AsyncIterator[object]:
    async for each in connect(engine, provider):
        yield each


def request(request_id: str, *, max_tokens: int = 9, n: int = 1) -> pb.GenerateRequest:
    sampling = pb.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, n=n)
    return pb.GenerateRequest(
        request_id=request_id, text=PROMPT, stream=True, sampling_params=sampling
    )


async def the_span(exporter: InMemorySpanExporter) -> ReadableSpan:
    """The one span; a call may reach its client before its span ends."""
    (span,) = await eventually(exporter.get_finished_spans)
    return span


def traceparent(*, sampled: bool = True) -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-{int(sampled):02}"),)


async def test_a_request_is_a_span_in_its_callers_trace(stub, exporter) -> None:
    outputs = [each async for each in stub.Generate(request("a"), metadata=traceparent())]
    complete = outputs[-1].complete
    span = await the_span(exporter)
    assert span.name == "vllm.grpc.engine.VllmEngine/Generate"
    assert span.kind is SpanKind.SERVER
    assert span.context.trace_id == int(TRACE_ID, 16)
    assert span.parent is not None
    assert span.parent.span_id == int(PARENT_ID, 16)
    told = dict(span.attributes or {})
    assert told["gen_ai.request.model"] == "tiny"
    assert told["gen_ai.request.id"] == "a"
    assert told["gen_ai.usage.input_tokens"] == 4
    assert told["gen_ai.usage.output_tokens"] == 9
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert told["specsched.num_accepted_tokens"] == complete.spec_accepted_tokens
    assert told["rpc.grpc.status_code"] == 0
    assert span.status.status_code is StatusCode.UNSET
    assert [event.name for event in span.events] == ["accepted", "first token"]
    assert 0 < told["gen_ai.latency.time_to_first_token"] < (span.end_time - span.start_time) / 1e9


async def test_without_metadata_a_request_begins_a_trace(stub, exporter) -> None:
    async for _ in stub.Generate(request("a")):
        pass
    assert (await the_span(exporter)).parent is None


async def test_the_caller_decides_whether_a_request_is_traced(stub, exporter) -> None:
    async for _ in stub.Generate(request("a"), metadata=traceparent(sampled=False)):
        pass
    async for _ in stub.Generate(request("b"), metadata=traceparent()):
        pass
    assert (await the_span(exporter)).attributes["gen_ai.request.id"] == "b"


async def test_outputs_of_a_request_are_summed(stub, exporter) -> None:
    async for _ in stub.Generate(request("a", max_tokens=5, n=3)):
        pass
    told = (await the_span(exporter)).attributes
    assert told["gen_ai.usage.output_tokens"] == 15
    assert told["gen_ai.response.finish_reasons"] == ("length",) * 3


async def test_a_request_has_one_first_token_however_its_outputs_end(provider, exporter) -> None:
    engine = FakeEngine()
    async for stub in connect(engine, provider):
        call = stub.Generate(request("a", n=2))
        await engine.received("a")
        for index in range(2):
            engine.emit("a", (5,), index=index, num_output_tokens=1)
            await call.read()
            engine.emit("a", (), index=index, num_output_tokens=1, finish_reason="stop")
            await call.read()
        assert await call.read() is grpc.aio.EOF
    events = [event.name for event in (await the_span(exporter)).events]
    assert events == ["accepted", "first token"]


async def test_a_refusal_is_the_callers_error_and_its_text_is_not_told(stub, exporter) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in stub.Generate(pb.GenerateRequest(text=PROMPT, data_parallel_rank=3)):
            pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    span = await the_span(exporter)
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert span.attributes["error.type"] == "RequestError"
    assert span.status.status_code is StatusCode.UNSET
    assert "data_parallel_rank" not in span.to_json()


async def test_a_failed_request_is_an_error(provider, exporter) -> None:
    engine = FakeEngine()
    async for stub in connect(engine, provider):
        call = stub.Generate(request("a"))
        await engine.received("a")
        engine.emit("a", (), finish_reason="error", error=f"step failed at {PROMPT}")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    span = await the_span(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "INTERNAL"
    assert PROMPT not in span.to_json()


async def test_a_client_that_leaves_is_a_cancelled_call(provider, exporter) -> None:
    engine = FakeEngine()
    async for stub in connect(engine, provider):
        call = stub.Generate(request("a"))
        await engine.received("a")
        call.cancel()
        span = await the_span(exporter)
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.CANCELLED.value[0]


async def test_spans_and_logs_hold_no_text_and_no_token_id(lines, stub, exporter) -> None:
    outputs = [each async for each in stub.Generate(request("a"), metadata=traceparent())]
    span = await the_span(exporter)
    token_ids = list(outputs[-1].complete.output_ids)
    assert len(token_ids) == 9
    assert {"request accepted", "step", "request finished"} <= {line["event"] for line in lines}
    for told in (span.to_json(), *map(str, lines)):
        assert not any(word in told for word in PROMPT.split())
        assert not re.search(r"\[\s*\d+,\s*\d+,\s*\d+", told), "a list of token ids"


async def test_lines_of_a_call_name_its_request_and_trace(lines, stub, exporter) -> None:
    async def run(each: pb.GenerateRequest) -> None:
        async for _ in stub.Generate(each, metadata=traceparent()):
            pass

    await asyncio.gather(run(request("a")), run(request("b")))
    await eventually(lambda: len(exporter.get_finished_spans()) == 2)
    finished = [line for line in lines if line["event"] == "request finished"]
    assert sorted(line["request_id"] for line in finished) == ["a", "b"]
    assert {line["trace_id"] for line in finished} == {TRACE_ID}
    assert all(line["step_id"] for line in lines if line["event"] == "step")


async def test_an_unforeseen_fault_is_logged_with_its_request(lines, provider, exporter) -> None:
    engine = FakeEngine()
    engine.submit = lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
    async for stub in connect(engine, provider):
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Generate(request("a"), metadata=traceparent()).read()
    (failed,) = [line for line in lines if line["event"] == "call failed"]
    assert (failed["request_id"], failed["trace_id"]) == ("a", TRACE_ID)
    assert (await the_span(exporter)).status.status_code is StatusCode.ERROR


def test_a_collector_that_is_not_there_costs_no_request_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Export fails in the background; closing is bounded."""
    monkeypatch.setattr(open_telemetry, "_CLOSE_TIMEOUT_S", 0.5)
    with socket.socket() as listener:  # bound, not listening: connections are refused
        listener.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tracer = open_tracer(TracingConfig(otlp_endpoint=endpoint), "tiny")
        trace = tracer.begin(traceparent())
        assert trace.trace_id == TRACE_ID
        trace.end(None)
        closing = threading.Thread(target=tracer.close)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()


async def test_spans_reach_a_collector() -> None:
    """A collector's end of OTLP, from the published protocol."""
    received: list[Any] = []

    class Collector(TraceServiceServicer):
        async def Export(self, request, context):
            received.append(request)
            return ExportTraceServiceResponse()

    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tracer = open_tracer(TracingConfig(otlp_endpoint=f"http://127.0.0.1:{port}"), "tiny")
    tracer.begin(traceparent()).end(None)
    await asyncio.to_thread(tracer.close)
    await server.stop(None)
    (request,) = received
    (resource,) = request.resource_spans
    assert resource.resource.attributes[0].key
    (span,) = resource.scope_spans[0].spans
    assert span.trace_id.hex() == TRACE_ID
    assert span.parent_span_id.hex() == PARENT_ID


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"otlp_endpoint": "127.0.0.1:4317"}, "accepted: http://HOST:PORT"),
        ({"otlp_endpoint": "http://collector"}, "accepted: http://HOST:PORT"),
        ({"otlp_endpoint": "http://collector:port"}, "accepted: http://HOST:PORT"),
        ({"otel_sample_ratio": 0.5}, "no effect without otlp_endpoint"),
        ({"otlp_endpoint": "http://a:1", "otel_sample_ratio": 1.5}, "accepted: >= 0 and <= 1"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        load_settings(TracingConfig, options, {})


@pytest.mark.parametrize(
    "missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"]
)
def test_without_opentelemetry_the_option_says_what_to_install(monkeypatch, missing: str) -> None:
    for name in [each for each in sys.modules if each == missing or each.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingPackageError, match=re.escape("pip install 'specsched[otel]'")):
        load_settings(TracingConfig, {"otlp_endpoint": "http://127.0.0.1:4317"}, {})
