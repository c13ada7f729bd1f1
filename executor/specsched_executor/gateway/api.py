"""What the gateway asks of an engine, a model and a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from specsched_protocol.plan import FallbackReason

from specsched_executor.core import DeltaSink, GenerationRequest


class StepTotals(Protocol):
    """What the engine counted since it started; the words are explained in executor.proto."""

    @property
    def num_steps(self) -> int:
        """Steps run."""

    @property
    def num_planned_steps(self) -> int:
        """Steps with drafts that carried out a scheduler's decision."""

    @property
    def num_fallback_steps(self) -> Mapping[FallbackReason, int]:
        """Steps with drafts that had no decision, by reason."""

    @property
    def num_rows(self) -> int:
        """Rows of the target: anchors, drafts and prefill."""

    @property
    def num_drafted_tokens(self) -> int:
        """Draft tokens proposed."""

    @property
    def num_scheduled_tokens(self) -> int:
        """Draft tokens that the budgets allowed."""

    @property
    def num_verified_tokens(self) -> int:
        """Draft tokens run through the target."""

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens kept."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens put out to requests."""

    @property
    def num_preemptions(self) -> int:
        """Requests that lost their KV cache and were computed again."""

    @property
    def num_failed_steps(self) -> int:
        """Steps that raised."""

    @property
    def num_failed_requests(self) -> int:
        """Requests ended by an error of the engine."""


class EngineStats(StepTotals, Protocol):
    """The engine's load at one instant, and its totals."""

    @property
    def num_running_requests(self) -> int:
        """Requests that hold a slot."""

    @property
    def num_waiting_requests(self) -> int:
        """Requests queued for a slot."""

    @property
    def max_running_requests(self) -> int:
        """Slots there are."""

    @property
    def num_used_tokens(self) -> int:
        """KV cache positions in use."""

    @property
    def max_tokens(self) -> int:
        """KV cache positions there are."""


class EngineApi(Protocol):
    """An engine that runs in a thread or process of its own. `submit` and `abort` never block."""

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Queue a request; `sink` gets its deltas, the last one with a finish_reason.

        Raises RequestError for a request that can never be served as asked, and EngineStoppedError
        for one that comes too late; or ends it with that error and the reason "refused",
        "duplicate" for an id that is in use, or "stopped".
        """

    def abort(self, request_id: str, sink: DeltaSink | None = None) -> object:
        """End a request submitted here (its last delta says "abort"); other ids are ignored.

        sink: end it only if it was submitted with this one: the id may be another request's by now.
        """

    def stats(self) -> EngineStats:
        """The load now; any thread that may wait for it."""


class Tokenizer(Protocol):
    """Text to ids, and the files another process needs to do the same."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt given as plain text, special tokens in the text recognised."""

    def files(self) -> Mapping[str, bytes]:
        """File name -> content: tokenizer.json, tokenizer_config.json, chat template if any."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Facts of the served model, as GetModelInfo and GetServerInfo tell them.

    `model_type` and `architectures` are those of a Hugging Face config.json. `dtype` is a torch
    dtype name ("float32"). `block_size`: KV cache positions per block.
    `attention_backend`: what runs attention, and how the indexer's queries are laid out.
    """

    name: str
    path: str
    model_type: str
    architectures: tuple[str, ...]
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    bos_token_id: int
    max_requests: int
    dtype: str
    block_size: int
    attention_backend: str = "grouped"
