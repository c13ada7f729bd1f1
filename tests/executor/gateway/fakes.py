"""An engine whose every token a test decides, a tokenizer of four words, and their gateway."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import DeltaSink, GenerationRequest, RequestError, TokenDelta
from specsched_executor.engine_stopped import EngineStoppedError
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.messages import Topic
from specsched_executor.front_end.order_taker import OrderTaker, sendable_stats
from specsched_executor.front_end.remote_engine import RemoteEngine
from specsched_executor.gateway import EngineApi, Gateway, GatewayConfig, ServedModel, build_server
from specsched_executor.gateway.counters_servicer import AttachedSchedulers, nobody
from specsched_protocol.plan import FallbackReason
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

_T = TypeVar("_T")

MODEL = ServedModel(
    name="tiny",
    path="tiny.gguf",
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    max_context_tokens=64,
    vocab_size=8,
    eos_token_ids=(7,),
    pad_token_id=0,
    bos_token_id=1,
    max_requests=4,
    dtype="float32",
    block_size=16,
)
WORDS = ("<unk>", "<user>", "<assistant>", "hello", "world", "good", "bye", "<end>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class FakeStats:
    num_running_requests: int = 3
    num_waiting_requests: int = 2
    max_running_requests: int = 4
    num_used_tokens: int = 25
    max_tokens: int = 100
    num_output_tokens: int = 1000
    num_steps: int = 300
    num_planned_steps: int = 190
    num_fallback_steps: Mapping[FallbackReason, int] = dataclasses.field(
        default_factory=lambda: {FallbackReason.LATE: 10}
    )
    num_rows: int = 1500
    num_drafted_tokens: int = 900
    num_scheduled_tokens: int = 800
    num_verified_tokens: int = 700
    num_accepted_tokens: int = 600
    num_preemptions: int = 0
    num_failed_steps: int = 0
    num_failed_requests: int = 0


def tell(sink: DeltaSink, delta: TokenDelta) -> None:
    """As the engine's thread does."""
    sink(delta)
    if isinstance(sink, BatchedSink):
        sink.taker.flush()


class FakeEngine:
    """Accepts what it is given; deltas come from `emit`, in whatever thread calls it."""

    def __init__(self) -> None:
        self.requests: dict[str, GenerationRequest] = {}
        self.sinks: dict[str, DeltaSink] = {}
        self.aborted: list[str] = []
        self.refusal: str | None = None
        self.has_stopped = False

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        if self.refusal is not None:
            raise RequestError(self.refusal)
        if self.has_stopped:
            raise EngineStoppedError("the engine has stopped")
        self.requests[request.request_id] = request
        self.sinks[request.request_id] = sink

    def abort(self, request_id: str, sink: DeltaSink | None = None) -> None:
        if sink not in {None, self.sinks.get(request_id)}:
            return
        self.aborted.append(request_id)
        self.emit(request_id, (), finish_reason="abort")

    def stats(self) -> FakeStats:
        return FakeStats()

    def emit(self, request_id: str, token_ids: Sequence[int], **fields: object) -> None:
        told = TokenDelta(request_id, tuple(token_ids), **fields)  # type: ignore[arg-type]
        tell(self.sinks[request_id], told)

    async def received(self, request_id: str) -> GenerationRequest:
        return await eventually(lambda: self.requests.get(request_id))


class AnsweringEngine(FakeEngine):
    """Answers every request in a thread of its own, a token at a time, as `answer` says.

    context: tokens of prompt and output together, at most; None: any number.
    """

    def __init__(self, answer: Callable[[GenerationRequest], Sequence[int]]) -> None:
        super().__init__()
        self._answer = answer
        self.context: int | None = None

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        super().submit(request, sink)
        threading.Thread(target=self._run, args=(request,)).start()

    def _run(self, request: GenerationRequest) -> None:
        answer = self._answer(request)
        prompt = len(request.prompt_token_ids)
        room = len(answer) if self.context is None else self.context - prompt
        shown = answer[: request.sampling.max_tokens][:room]
        for count, token_id in enumerate(shown, start=1):
            self.emit(
                request.request_id, [token_id], num_prompt_tokens=prompt, num_output_tokens=count
            )
        self.emit(
            request.request_id,
            (),
            finish_reason="stop" if len(shown) == len(answer) else "length",
            num_prompt_tokens=prompt,
            num_output_tokens=len(shown),
            num_draft_tokens=4,
            num_accepted_tokens=3,
        )


class WordTokenizer:
    """One id per word of WORDS."""

    def __init__(self) -> None:
        vocab = {word: index for index, word in enumerate(WORDS)}
        self._fast = FastTokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        self._fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    def encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text).ids)

    def files(self) -> Mapping[str, bytes]:
        config = {"chat_template": CHAT_TEMPLATE, "eos_token": "<end>", "bos_token": None}
        return {
            "tokenizer.json": self._fast.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


@contextlib.asynccontextmanager
async def serving(
    engine: FakeEngine,
    schedulers: AttachedSchedulers = nobody,
    *,
    is_apart: bool = False,
    **config: object,
) -> AsyncIterator[Gateway]:
    """The gateway of an engine on a free loopback port. is_apart: they meet in a connection."""
    options = GatewayConfig(port=0, **config)  # type: ignore[arg-type]
    async with contextlib.AsyncExitStack() as stack:
        seen: EngineApi = engine
        if is_apart:
            seen = remote = stack.enter_context(at_a_distance(engine, schedulers))
            schedulers = remote.schedulers
        gateway = build_server(seen, MODEL, WordTokenizer(), options, schedulers)
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop(grace_s=0)


@contextlib.contextmanager
def at_a_distance(
    engine: EngineApi, schedulers: AttachedSchedulers = nobody
) -> Iterator[RemoteEngine]:
    """The engine through a connection whose ends are both in this process."""
    ours, theirs = map(Channel, socket.socketpair())
    ended = threading.Event()
    orders = OrderTaker(
        ours,
        engine,
        {
            Topic.STATS: lambda: sendable_stats(engine),
            Topic.SCHEDULERS: lambda: schedulers().SerializeToString(),
        },
        on_message=lambda message: None,
        on_end=ended.set,
    )
    orders.start()
    remote = RemoteEngine(theirs, on_message=lambda message: None, on_end=lambda: None)
    try:
        yield remote
    finally:
        remote.close()
        theirs.close()
        assert ended.wait(60)
        orders.close()


@contextlib.contextmanager
def serving_in_thread(engine: FakeEngine, schedulers: AttachedSchedulers = nobody) -> Iterator[str]:
    """The same for clients that block; yields its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = contextlib.AsyncExitStack()
    try:
        entering = stack.enter_async_context(serving(engine, schedulers))
        gateway = asyncio.run_coroutine_threadsafe(entering, loop).result(timeout=30)
        yield f"127.0.0.1:{gateway.port}"
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(timeout=30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=30)
        loop.close()


async def eventually(probe: Callable[[], _T | None]) -> _T:
    """Wait for a condition that other threads or peers bring about."""
    async with asyncio.timeout(60):
        while not (result := probe()):
            await asyncio.sleep(0.002)
    return result
