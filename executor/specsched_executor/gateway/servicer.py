"""`vllm.grpc.engine.VllmEngine`: methods convert and call, nothing more."""

# Names and parameters of the methods are the service's.
# ruff: noqa: ARG002, N802

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from specsched_executor.core import RequestError
from specsched_executor.gateway import responses
from specsched_executor.gateway.api import EngineApi, ServedModel, Tokenizer
from specsched_executor.gateway.errors import UnsupportedCallError
from specsched_executor.gateway.observed import observed_call
from specsched_executor.gateway.outputs import Outputs
from specsched_executor.gateway.rate import RateMeter
from specsched_executor.gateway.requests import to_generation_request
from specsched_executor.gateway.sessions import Sessions
from specsched_executor.gateway.tokenizer_archive import build_archive, to_chunks
from specsched_executor.tracing import NoRequestTracer, RequestTracer


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Serves one engine. Exceptions leave it as they are; `StatusInterceptor` translates them."""

    def __init__(
        self,
        engine: EngineApi,
        sessions: Sessions,
        model: ServedModel,
        tokenizer: Tokenizer,
        tracer: RequestTracer | None = None,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._model = model
        self._tokenizer = tokenizer
        self._tracer = tracer or NoRequestTracer()
        self._tokenizer_archive = build_archive(tokenizer.files())
        self._start_s = time.monotonic()
        self._last_receive_s = 0.0
        self._output_rate = RateMeter(self._start_s)

    # ===================== Generation =====================

    async def Generate(
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Stream chunks when asked to, then each of the n outputs as it completes."""
        self._last_receive_s = time.time()
        with observed_call(self._tracer, context) as call:
            generation = to_generation_request(request, await self._prompt_token_ids(request))
            call.accept(generation)
            outputs = Outputs(generation, stream=request.stream)
            async with contextlib.aclosing(self._sessions.run(generation)) as deltas:
                async for delta in deltas:
                    call.receive(delta)
                    for reply in outputs.replies(delta):
                        yield reply

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        """End requests early; their streams finish with "abort". Unknown ids are ignored."""
        for request_id in request.request_ids:
            self._sessions.abort(request_id)
        return pb.AbortResponse()

    async def _prompt_token_ids(self, request: pb.GenerateRequest) -> list[int]:
        kind = request.WhichOneof("input")
        if kind == "tokenized":
            return list(request.tokenized.input_ids)
        if kind == "text":
            return await asyncio.to_thread(self._tokenizer.encode, request.text)
        raise RequestError("input is unset; accepted: tokenized or text")

    # ===================== Facts =====================

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Any
    ) -> pb.HealthCheckResponse:
        """Tell whether requests are taken."""
        reason = self._sessions.closed_because
        return pb.HealthCheckResponse(healthy=reason is None, message=reason or "serving")

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Any
    ) -> pb.GetModelInfoResponse:
        """Facts of the served model."""
        return responses.to_model_info(self._model)

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Any
    ) -> pb.GetServerInfoResponse:
        """Facts of this process."""
        uptime_s = time.monotonic() - self._start_s
        return responses.to_server_info(
            self._model, self._sessions.num_open, self._last_receive_s, uptime_s
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Any) -> pb.GetLoadsResponse:
        """The engine's load now."""
        if request.dp_rank != 0:
            raise RequestError(f"dp_rank = {request.dp_rank} does not exist; accepted: 0 or unset")
        stats = await asyncio.to_thread(self._engine.stats)
        return responses.to_loads(
            stats,
            output_tokens_per_second=self._output_rate.update(
                time.monotonic(), stats.num_output_tokens
            ),
            num_unstarted_prompt_tokens=self._sessions.num_unstarted_prompt_tokens,
            version=importlib.metadata.version("specsched"),
        )

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """The tokenizer's files as a zip."""
        for chunk in to_chunks(self._tokenizer_archive):
            yield chunk

    # ===================== Not offered =====================

    async def Embed(self, request: Any, context: Any) -> NoReturn:
        """Refused."""
        raise UnsupportedCallError("Embed is not offered: this executor generates text only")

    async def FlushCache(self, request: Any, context: Any) -> NoReturn:
        """Refused."""
        raise UnsupportedCallError("FlushCache is not offered: there is no prefix cache to flush")

    async def StartProfile(self, request: Any, context: Any) -> NoReturn:
        """Refused."""
        raise UnsupportedCallError("StartProfile is not offered: there is no built-in profiler")

    async def StopProfile(self, request: Any, context: Any) -> NoReturn:
        """Refused."""
        raise UnsupportedCallError("StopProfile is not offered: there is no built-in profiler")

    async def SubscribeKvEvents(
        self, request: Any, context: Any
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        """Refused."""
        raise UnsupportedCallError(
            "SubscribeKvEvents is not offered: there is no prefix cache; ask GetLoads for the load"
        )
        yield  # makes this method the stream its signature says
