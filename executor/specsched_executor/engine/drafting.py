"""The last part of a step: let the drafter learn from the outcome and draft anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from specsched_protocol.plan import ConfidenceRows

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.core import Drafter, DraftInput, DraftOutput
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import BatchEntry, StepBatch
from specsched_executor.engine.confidence_gate import no_rows
from specsched_executor.engine.drafts import DraftTable
from specsched_executor.engine.inputs import BatchTensors
from specsched_executor.engine.target_pass import PassOutcome

__all__ = ["Calibrations", "Drafting", "NewDrafts"]

Calibrations = Callable[[], ConfidenceCalibration | None]


@dataclass(frozen=True, slots=True)
class NewDrafts:
    """Confidences of the drafts just made, how many tokens they have and what they cost."""

    rows: ConfidenceRows
    num_tokens: int
    draft_ms: float


class Drafting:
    """Feeds one drafter. calibrations: what drafts are ranked by now, asked once per step."""

    def __init__(
        self, drafter: Drafter, drafts: DraftTable, calibrations: Calibrations = lambda: None
    ) -> None:
        self._drafter = drafter
        self._drafts = drafts
        self._calibrations = calibrations

    def observe(self, tensors: BatchTensors, outcome: PassOutcome) -> None:
        """Tell the drafter what became of its drafts."""
        drafted = (tensors.num_draft_tokens > 0) & ~outcome.verification.faulty
        if drafted.any():
            self._drafter.observe(
                tensors.slot_ids[drafted],
                tensors.generations[drafted],
                outcome.verify_lens[drafted],
                outcome.verification.num_accepted[drafted],
            )

    def draft(self, batch: StepBatch, outcome: PassOutcome, max_tokens: int) -> NewDrafts:
        """Draft for the requests of `batch` that go on, `max_tokens` at most each.

        A drafter that wants features is shown requests inside a prefill too, to draft nothing for:
        their hidden states pass only once.
        """
        started = time.perf_counter()
        wants_features = bool(self._drafter.feature_layers)
        chosen = [
            index
            for index, entry in enumerate(batch.entries)
            if not entry.request.is_over and (entry.samples or wants_features)
        ]
        requests = [batch.entries[index].request for index in chosen]
        lengths = [_draft_length(batch.entries[index], max_tokens) for index in chosen]
        if not any(lengths) and not wants_features:
            requests, lengths = [], []
        output = None
        if requests:
            inputs = _inputs(batch.step_id, requests, lengths)
            if wants_features:
                inputs = _with_features(inputs, batch, chosen, outcome)
            output = self._drafter.draft(inputs)
        rows = self._keep(batch, requests, lengths, output)
        draft_ms = (time.perf_counter() - started) * 1e3
        return NewDrafts(rows, int(rows.num_draft_tokens.sum()), draft_ms)

    def _keep(
        self,
        batch: StepBatch,
        requests: Sequence[ActiveRequest],
        lengths: Sequence[int],
        output: DraftOutput | None,
    ) -> ConfidenceRows:
        for entry in batch.entries:
            entry.request.num_draft_tokens = 0
            entry.request.was_offered_draft = False
        if output is None:
            self._drafts.clear()
            return no_rows(batch.step_id, self._drafts.max_draft_tokens)
        slot_ids, generations = _slots(requests)
        num_tokens = torch.minimum(output.num_draft_tokens, _int64(lengths))
        for request, length, num in zip(requests, lengths, num_tokens.tolist(), strict=True):
            request.num_draft_tokens = num
            request.was_offered_draft = length > 0
        is_greedy = torch.tensor([request.is_greedy for request in requests])
        self._drafts.store(slot_ids, generations, output, is_greedy, self._calibrations())
        return ConfidenceRows(
            source_step_id=batch.step_id,
            slot_id=slot_ids.numpy().astype(np.uint32),
            generation=generations.numpy().astype(np.uint32),
            num_draft_tokens=num_tokens.numpy().astype(np.uint32),
            confidence=self._drafts.raw_confidence(slot_ids, generations).numpy(),
        )


def _draft_length(entry: BatchEntry, max_tokens: int) -> int:
    return min(max_tokens, entry.request.max_useful_drafts) if entry.samples else 0


def _inputs(step_id: int, requests: Sequence[ActiveRequest], lengths: Sequence[int]) -> DraftInput:
    slot_ids, generations = _slots(requests)
    return DraftInput(
        step_id=step_id,
        slot_ids=slot_ids,
        generations=generations,
        histories=tuple(request.tokens for request in requests),
        max_draft_tokens=_int64(lengths),
        temperatures=torch.tensor(
            [_draft_temperature(request) for request in requests], dtype=torch.float32
        ),
        seeds=_int64([request.seed for request in requests]),
    )


def _draft_temperature(request: ActiveRequest) -> float:
    """What drafts are drawn at; the likeliest token agrees most often with a sample of its own."""
    sampling = request.request.sampling
    return 0.0 if sampling.keeps_own_sample else sampling.temperature


def _with_features(
    inputs: DraftInput, batch: StepBatch, chosen: Sequence[int], outcome: PassOutcome
) -> DraftInput:
    """Add the hidden states of the rows whose tokens are committed: base rows, accepted drafts."""
    starts = outcome.query_start_loc.tolist()
    accepted = outcome.verification.num_accepted.tolist()
    rows: list[int] = []
    counts = [0]
    for index in chosen:
        num_rows = batch.entries[index].num_base_rows + accepted[index]
        rows += range(starts[index], starts[index] + num_rows)
        counts.append(len(rows))
    committed = _int64(rows)
    features = {layer: states[committed] for layer, states in outcome.output.features.items()}
    return replace(inputs, features=features, feature_start_loc=_int64(counts))


def _slots(requests: Sequence[ActiveRequest]) -> tuple[torch.Tensor, torch.Tensor]:
    slot_ids = _int64([request.slot_id for request in requests])
    return slot_ids, _int64([request.generation for request in requests])


def _int64(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)
