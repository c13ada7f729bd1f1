"""The last part of a step: let the drafter learn from the outcome and draft anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from specsched_protocol.plan import ConfidenceRows

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.core import Drafter, DraftInput, DraftOutput
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.confidence_gate import no_rows
from specsched_executor.engine.drafts import DraftTable
from specsched_executor.engine.slot_columns import SlotColumns, Slots
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
        self,
        drafter: Drafter,
        drafts: DraftTable,
        columns: SlotColumns,
        calibrations: Calibrations = lambda: None,
    ) -> None:
        self._drafter = drafter
        self._drafts = drafts
        self._columns = columns
        self._calibrations = calibrations

    def observe(self, batch: StepBatch, outcome: PassOutcome) -> None:
        """Tell the drafter what became of its drafts."""
        drafted = (batch.num_draft_tokens > 0) & ~outcome.faulty
        if drafted.any():
            self._drafter.observe(
                torch.from_numpy(batch.slot_ids[drafted]),
                torch.from_numpy(batch.generations[drafted]),
                torch.from_numpy(outcome.verify_lens[drafted].astype(np.int64)),
                torch.from_numpy(outcome.num_accepted[drafted].astype(np.int64)),
            )

    def draft(self, batch: StepBatch, outcome: PassOutcome, max_tokens: int) -> NewDrafts:
        """Draft for the requests of `batch` that go on, `max_tokens` at most each.

        A drafter that wants features is shown requests inside a prefill too, to draft nothing for:
        their hidden states pass only once.
        """
        started = time.perf_counter()
        wants_features = bool(self._drafter.feature_layers)
        chosen = self._columns.hold(batch.slot_ids, batch.generations)
        if not wants_features:
            chosen &= batch.samples
        useful = self._columns.max_useful_drafts(batch.slot_ids)
        lengths = np.where(batch.samples, np.minimum(useful, max_tokens), 0)[chosen]
        if not lengths.any() and not wants_features:
            chosen, lengths = np.zeros_like(chosen), lengths[:0]
        indexes = np.flatnonzero(chosen)
        output = None
        if len(indexes):
            inputs = _inputs(batch, self._columns, indexes, lengths)
            if wants_features:
                inputs = _with_features(inputs, batch, indexes, outcome)
            output = self._drafter.draft(inputs)
        # What only took its features in has drafted nothing.
        rows = self._keep(batch, chosen, lengths, output if lengths.any() else None)
        draft_ms = (time.perf_counter() - started) * 1e3
        return NewDrafts(rows, int(rows.num_draft_tokens.sum()), draft_ms)

    def _keep(
        self,
        batch: StepBatch,
        chosen: npt.NDArray[np.bool_],
        lengths: Slots,
        output: DraftOutput | None,
    ) -> ConfidenceRows:
        columns = self._columns
        columns.num_draft_tokens[batch.slot_ids] = 0
        columns.was_offered_draft[batch.slot_ids] = False
        if output is None:
            self._drafts.clear()
            return no_rows(batch.step_id, self._drafts.max_draft_tokens)
        slots, generations = batch.slot_ids[chosen], batch.generations[chosen]
        num_tokens = np.minimum(output.num_draft_tokens.numpy(), lengths)
        columns.num_draft_tokens[slots] = num_tokens
        columns.was_offered_draft[slots] = lengths > 0
        slot_ids, keys = torch.from_numpy(slots), torch.from_numpy(generations)
        is_greedy = torch.from_numpy(columns.is_greedy[slots])
        self._drafts.store(slot_ids, keys, output, is_greedy, self._calibrations())
        return ConfidenceRows(
            source_step_id=batch.step_id,
            slot_id=slots.astype(np.uint32),
            generation=generations.astype(np.uint32),
            num_draft_tokens=num_tokens.astype(np.uint32),
            confidence=self._drafts.raw_confidence(slot_ids, keys).numpy(),
        )


def _inputs(
    batch: StepBatch, columns: SlotColumns, chosen: npt.NDArray[np.int64], lengths: Slots
) -> DraftInput:
    slots = batch.slot_ids[chosen]
    return DraftInput(
        step_id=batch.step_id,
        slot_ids=torch.from_numpy(slots),
        generations=torch.from_numpy(batch.generations[chosen]),
        histories=tuple(columns.history(slot) for slot in slots.tolist()),
        max_draft_tokens=torch.from_numpy(lengths),
        temperatures=torch.from_numpy(columns.draft_temperature[slots]),
        seeds=torch.from_numpy(columns.seed[slots]),
    )


def _with_features(
    inputs: DraftInput, batch: StepBatch, chosen: npt.NDArray[np.int64], outcome: PassOutcome
) -> DraftInput:
    """Add the hidden states of the rows whose tokens are committed: base rows, accepted drafts."""
    num_committed = (batch.num_base_rows + outcome.num_accepted)[chosen]
    start_loc = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(num_committed, out=start_loc[1:])
    features, num_kept = outcome.output.features, int(start_loc[-1])
    if any(len(states) > num_kept for states in features.values()):  # else all, in order
        num_rows = batch.num_base_rows + outcome.verify_lens
        firsts = (np.cumsum(num_rows) - num_rows)[chosen]
        rows = np.repeat(firsts - start_loc[:-1], num_committed) + np.arange(num_kept)
        index = torch.from_numpy(rows)
        features = {layer: states[index] for layer, states in features.items()}
    return replace(inputs, features=features, feature_start_loc=torch.from_numpy(start_loc))
