"""The client of an executor, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from specsched_protocol.v1 import executor_pb2

from specsched_client import _methods as methods
from specsched_client._connected import AsyncConnected
from specsched_client._deadline import Deadline
from specsched_client._generation import (
    Generation,
    completions_of,
    needs_text,
    require_single,
    whole_of,
)
from specsched_client._sampling import Sampling
from specsched_client._targets import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from specsched_client._tokenizer import HuggingFaceCodec, TokenizerArchive
from specsched_client._transport import AsyncGrpcTransport, AsyncTransport
from specsched_client._types import Completion, Delta, Prompt


class AsyncClient(AsyncConnected):
    """Calls one executor from one event loop; close it, or use it as a context manager.

    target: host:port. transport: the wire, if not gRPC to `target`. Every method raises one of
    `SpecschedError`; `timeout_s` bounds all calls that a method makes, None does not.
    """

    def __init__(
        self, target: str = DEFAULT_TARGET, *, transport: AsyncTransport | None = None
    ) -> None:
        super().__init__(transport or AsyncGrpcTransport(target))
        self._codec: HuggingFaceCodec | None = None
        self._codec_lock = asyncio.Lock()

    # ===================== Generation =====================

    async def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Completion:
        """The whole output for a prompt; for n above 1 there is `generate_all`."""
        require_single(sampling)
        deltas = self._run(prompt, sampling, request_id, timeout_s, stream=False)
        return whole_of([delta async for delta in deltas])

    async def generate_all(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Completion]:
        """The n outputs for a prompt, whole and in order."""
        deltas = self._run(prompt, sampling, request_id, timeout_s, stream=False)
        return completions_of([delta async for delta in deltas])

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Delta]:
        """Output as it comes; an output's last delta carries its completion. Closing it aborts."""
        return self._run(prompt, sampling, request_id, timeout_s, stream=True)

    async def abort(
        self, request_ids: Sequence[str], *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> None:
        """End requests early, whoever sent them; unknown ids are ignored."""
        request = pb.AbortRequest(request_ids=request_ids)
        await self._transport.unary(methods.ABORT, request, timeout_s)

    async def tokenizer(self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> HuggingFaceCodec:
        """The model's tokenizer and chat template, fetched once."""
        async with self._codec_lock:
            if self._codec is None:
                archive = TokenizerArchive()
                request = common_pb2.GetTokenizerRequest()
                async for chunk in self._transport.stream(
                    methods.GET_TOKENIZER, request, timeout_s
                ):
                    archive.feed(chunk)
                self._codec = archive.codec()
            return self._codec

    async def _run(
        self,
        prompt: Prompt,
        sampling: Sampling | None,
        request_id: str | None,
        timeout_s: float | None,
        *,
        stream: bool,
    ) -> AsyncGenerator[Delta]:
        deadline = Deadline.after(timeout_s)
        codec = (
            await self.tokenizer(timeout_s=deadline.remaining_s()) if needs_text(prompt) else None
        )
        generation = Generation(
            prompt, sampling or Sampling(), codec, stream=stream, request_id=request_id
        )
        responses = self._transport.stream(
            methods.GENERATE, generation.request, deadline.remaining_s()
        )
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield generation.feed(response)
        generation.end()

    # ===================== Facts =====================

    async def health(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> pb.HealthCheckResponse:
        """Whether the executor takes requests."""
        return await self._transport.unary(methods.HEALTH_CHECK, pb.HealthCheckRequest(), timeout_s)

    async def model_info(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> pb.GetModelInfoResponse:
        """Facts of the served model."""
        return await self._transport.unary(
            methods.GET_MODEL_INFO, pb.GetModelInfoRequest(), timeout_s
        )

    async def server_info(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> pb.GetServerInfoResponse:
        """Facts of the executor's process."""
        return await self._transport.unary(
            methods.GET_SERVER_INFO, pb.GetServerInfoRequest(), timeout_s
        )

    async def loads(self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> pb.GetLoadsResponse:
        """The engine's load now."""
        return await self._transport.unary(methods.GET_LOADS, pb.GetLoadsRequest(), timeout_s)

    async def step_counters(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> executor_pb2.GetStepCountersResponse:
        """Totals of the executor's steps since it started."""
        request = executor_pb2.GetStepCountersRequest()
        return await self._transport.unary(methods.GET_STEP_COUNTERS, request, timeout_s)

    async def schedulers(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> executor_pb2.ListSchedulersResponse:
        """The schedulers attached to the executor now, and how plans travel."""
        request = executor_pb2.ListSchedulersRequest()
        return await self._transport.unary(methods.LIST_SCHEDULERS, request, timeout_s)
