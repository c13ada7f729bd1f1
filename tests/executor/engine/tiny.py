"""A target small enough that every probability is known, and what tests drive an engine with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from specsched_executor.core import (
    DraftInput,
    DraftOutput,
    GenerationRequest,
    ModelBatch,
    ModelConfig,
    SamplingParams,
    TargetOutput,
    TokenDelta,
)
from specsched_executor.engine import Detokenizer, EngineConfig
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.admission import Admission
from specsched_executor.engine.assembly import build_step_loop
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.delivery import Delivery
from specsched_executor.sampling import Purpose, draw, keyed_uniforms
from specsched_protocol.plan import (
    NO_BUDGET_CAP,
    ConfidenceRows,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)

UNWRITTEN = -1


@dataclass
class TokenCache:
    """Keeps token ids where a real cache keeps keys and values, so that a wrong slot shows."""

    num_blocks: int
    block_size: int
    tokens: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = torch.full((self.num_blocks * self.block_size,), UNWRITTEN)


class TableTarget:
    """Next token's distribution: a table of the two tokens before it, read back from the cache.

    table: float [V, V, V], rows summing to 1. hidden states of layer 0: one-hot of the row's token.
    """

    def __init__(
        self, table: np.ndarray, *, max_context_tokens: int = 256, eos: tuple[int, ...] = ()
    ) -> None:
        self.logits = torch.tensor(table, dtype=torch.float32).log()
        vocab_size = table.shape[0]
        self.config = ModelConfig(
            name="table",
            num_layers=1,
            hidden_size=vocab_size,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            intermediate_size=1,
            vocab_size=vocab_size,
            max_context_tokens=max_context_tokens,
            rope_theta=1.0,
            rms_norm_eps=1.0,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_ids=eos,
        )
        self.num_rows: list[int] = []
        self.fail_next = False

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> TokenCache:
        return TokenCache(num_blocks, block_size)

    def forward(self, batch: ModelBatch, kv_cache: TokenCache) -> TargetOutput:
        self.num_rows.append(len(batch.token_ids))
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the device went away")
        assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping)
        kv_cache.tokens[batch.slot_mapping] = batch.token_ids
        requests = torch.arange(len(batch.context_lens)).repeat_interleave(
            batch.query_start_loc.diff()
        )
        previous = self._read(batch, kv_cache, requests, 1)
        rows = batch.logit_rows
        logits = self.logits[previous[rows], batch.token_ids[rows]].clone()
        features = {0: torch.nn.functional.one_hot(batch.token_ids, self.config.vocab_size)}
        return TargetOutput(logits, {k: v.float() for k, v in features.items()})

    @staticmethod
    def _read(
        batch: ModelBatch, kv_cache: TokenCache, requests: torch.Tensor, distance: int
    ) -> torch.Tensor:
        position = (batch.positions - distance).clamp(min=0)
        block = batch.block_tables[requests, position // kv_cache.block_size].long()
        tokens = kv_cache.tokens[block * kv_cache.block_size + position % kv_cache.block_size]
        assert (tokens != UNWRITTEN).all()
        return tokens


def random_table(vocab_size: int, seed: int, concentration: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(vocab_size, concentration), size=(vocab_size, vocab_size))


class StochasticDrafter:
    """Samples drafts from a table of its own: q(next | token before), [V, V].

    Confidence: `confidence_of(token before)`; it may look at what comes before the draft only.
    """

    name = "stochastic"
    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        table: np.ndarray,
        max_draft_tokens: int,
        confidence_of: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.table = torch.tensor(table, dtype=torch.float32)
        self.k = max_draft_tokens
        self.confidence_of = confidence_of or (lambda before: torch.full(before.shape, 0.5))
        self.outcomes: list[tuple[int, int]] = []

    def first_tokens(self, inputs: DraftInput) -> torch.Tensor:
        return torch.tensor([history[-1] for history in inputs.histories])

    def draft(self, inputs: DraftInput) -> DraftOutput:
        before = self.first_tokens(inputs)
        positions = torch.tensor([len(history) for history in inputs.histories])
        tokens, confidences, distributions = [], [], []
        for j in range(self.k):
            distribution = self.table[before]
            uniforms = keyed_uniforms(inputs.seeds, positions + j, Purpose.DRAFT, inputs.step_id)
            sampled = draw(distribution, uniforms)
            greedy = distribution.argmax(dim=-1)
            confidences.append(self.confidence_of(before))
            before = torch.where(inputs.temperatures > 0, sampled, greedy)
            tokens.append(before)
            distributions.append(distribution)
        return DraftOutput(
            token_ids=torch.stack(tokens, dim=1),
            num_draft_tokens=inputs.max_draft_tokens.clone(),
            confidence=torch.stack(confidences, dim=1),
            distribution=torch.stack(distributions, dim=1),
        )

    def observe(self, slot_ids, generations, num_verified, num_accepted) -> None:
        self.outcomes += zip(num_verified.tolist(), num_accepted.tolist(), strict=True)

    def release(self, slot_id: int) -> None:
        pass


class SilentTransport:
    """No scheduler: every read says so."""

    def __init__(self, reason: FallbackReason = FallbackReason.NO_SCHEDULER) -> None:
        self.reason = reason
        self.published: list[tuple[ConfidenceRows | None, PlanRequest]] = []
        self.reports: list[StepReport] = []

    def publish(self, rows: ConfidenceRows | None, request: PlanRequest) -> None:
        self.published.append((rows, request))

    def read(self, step_id: int):
        return self.reason

    def report(self, report: StepReport) -> None:
        self.reports.append(report)

    @property
    def drafts(self) -> list[ConfidenceRows]:
        """Confidences of all steps that drafted, in order."""
        return [rows for rows, _ in self.published if rows is not None and len(rows.slot_id)]

    def close(self) -> None:
        pass


class ScriptedTransport(SilentTransport):
    """Decides with a function of (rows, request) at the moment of publication.

    `decide` returns the budget, or a StepDecision to hand out as it is. Every `lost`-th plan is
    lost.
    """

    def __init__(self, decide, *, max_verify_len: int = NO_BUDGET_CAP, lost: int = 0) -> None:
        super().__init__(FallbackReason.LATE)
        self.decide, self.max_verify_len, self.lost = decide, max_verify_len, lost
        self.decisions: dict[int, StepDecision] = {}

    def publish(self, rows: ConfidenceRows | None, request: PlanRequest) -> None:
        super().publish(rows, request)
        answer = self.decide(rows, request)
        if not isinstance(answer, StepDecision):
            answer = decision(request, answer, self.max_verify_len)
        self.decisions[request.step_id] = answer

    def read(self, step_id: int):
        if self.lost and step_id % self.lost == 0:
            return self.reason
        return self.decisions.get(step_id, self.reason)


def decision(
    request: PlanRequest, budget: int, max_verify_len: int = NO_BUDGET_CAP, **changes
) -> StepDecision:
    fields = {
        "step_id": request.step_id,
        "source_step_id": request.source_step_id,
        "epoch": 1,
        "budget": budget,
        "max_verify_len": max_verify_len,
        "next_draft_tokens": 16,
        "expected_tokens": 0.0,
        "expected_ms": 0.0,
        "policy_id": 0,
        "model_state": 1,
        "flags": 0,
        "num_repaired_confidences": 0,
        "decided_ns": 0,
    }
    return StepDecision(**(fields | changes))


@dataclass
class Result:
    token_ids: list[int] = field(default_factory=list)
    deltas: list[TokenDelta] = field(default_factory=list)

    def __call__(self, delta: TokenDelta) -> None:
        assert self.finish_reason is None, "a delta after the last one"
        self.token_ids += delta.token_ids
        self.deltas.append(delta)

    @property
    def finish_reason(self) -> str | None:
        return self.deltas[-1].finish_reason if self.deltas else None

    @property
    def last(self) -> TokenDelta:
        return self.deltas[-1]


class Driver:
    """A step loop without the thread: tests call `step`."""

    def __init__(
        self,
        target,
        drafter,
        transport,
        config: EngineConfig,
        gate=ConfidenceGate,
        detokenizer: Detokenizer | None = None,
    ):
        self.target, self.drafter, self.transport = target, drafter, transport
        self.ended: list[ActiveRequest] = []
        self.admission = Admission(target.config, config, detokenizer)
        self.gate = gate(transport, config.max_num_seqs * config.max_draft_tokens)
        self.loop = build_step_loop(target, drafter, self.gate, config, Delivery(self.ended.append))
        self._ids = itertools.count()
        self.active = {}

    def submit(self, prompt, sink: Result | None = None, **sampling) -> Result:
        """A seed fixes the draws alone, so that stochastic drafts are judged as such."""
        arrival = next(self._ids)
        params = SamplingParams(**{"repeatable": False} | sampling)
        request = GenerationRequest(f"r{arrival}", tuple(prompt), params)
        result = Result() if sink is None else sink
        self.active[arrival] = self.admission.accept(request, result)
        self.loop.queue(self.active[arrival])
        return result

    def run(self, max_steps: int = 100_000) -> None:
        for _ in range(max_steps):
            if not self.loop.has_work:
                return
            self.loop.step()
        raise AssertionError("requests are left")


def config(**changes) -> EngineConfig:
    sizes = {
        "num_kv_blocks": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_draft_tokens": 3,
        "block_size": 4,
    }
    return EngineConfig(**(sizes | changes))
