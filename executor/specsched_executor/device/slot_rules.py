"""Brings the logit rules of requests into the device's tables, once for each stay in a slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from specsched_kernels.rule_tables import LogitRules, LogitRuleSizes, LogitRuleTables

from specsched_executor.core import ModelConfig
from specsched_executor.device.step_arrays import DeviceSizes
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.sampling import MAX_BIASED_TOKENS, MAX_STOP_TOKEN_IDS, has_penalties

__all__ = ["SlotRules", "rule_sizes"]

_NOTHING_SEEN = np.zeros((0, 2), dtype=np.int32)


def rule_sizes(sizes: DeviceSizes, model: ModelConfig) -> LogitRuleSizes:
    """What the rules of any request take that is let in."""
    return LogitRuleSizes(
        max_seen=min(model.vocab_size, sizes.max_context_tokens),
        max_biases=min(model.vocab_size, MAX_BIASED_TOKENS),
        max_stops=MAX_STOP_TOKEN_IDS + len(model.eos_token_ids),
    )


class SlotRules:
    """Fills the slot of a request when its logits are first ruled there.

    No launched step commits tokens of the request by then, so the host knows all of them; from then
    on the device counts what it commits.
    """

    def __init__(self, tables: LogitRuleTables, columns: SlotColumns) -> None:
        self._tables = tables
        self._columns = columns
        self._generations = np.zeros(columns.num_slots, dtype=np.int64)

    def prepare(self, batch: StepBatch) -> Slots:
        """Indexes in `batch` of those whose logits the step rules; their slots are filled."""
        are_ruled = batch.samples & self._columns.are_ruled(batch.slot_ids)
        ruled = np.flatnonzero(are_ruled)
        if len(ruled):
            slots, generations = batch.slot_ids[ruled], batch.generations[ruled]
            for index in ruled[self._generations[slots] != generations].tolist():
                self._fill(batch.requests[index])
            self._generations[slots] = generations
        return ruled

    def _fill(self, request: ActiveRequest) -> None:
        sampling, stops = request.request.sampling, request.stop_rules
        seen = _NOTHING_SEEN
        if has_penalties(sampling):
            tokens = self._columns.history(request.slot_id)
            seen = _seen_tokens(tokens, request.num_prompt_tokens)
        rules = LogitRules(
            factors=(
                sampling.repetition_penalty,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            ),
            seen=seen,
            biases=sampling.logit_bias,
            stop_token_ids=sorted(stops.token_ids),
            min_position=request.num_prompt_tokens + stops.ignored_below,
        )
        self._tables.fill(request.slot_id, rules)


def _seen_tokens(tokens: npt.NDArray[np.int32], num_prompt_tokens: int) -> npt.NDArray[np.int32]:
    """The distinct tokens of prompt and output and how often each is in the output, [n, 2]."""
    token_ids, places = np.unique(tokens, return_inverse=True)
    counts = np.bincount(places[num_prompt_tokens:], minlength=len(token_ids))
    return np.stack([token_ids, counts.astype(np.int32)], axis=1)
