"""Brings the logit rules of requests into the device's tables, once for each stay in a slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from specsched_kernels.logit_rules import LogitRuleSizes, LogitRuleTables

from specsched_executor.core import ModelConfig
from specsched_executor.device.step_arrays import DeviceSizes
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.sampling import MAX_BIASED_TOKENS, MAX_STOP_TOKEN_IDS, has_penalties

__all__ = ["SlotRules", "rule_sizes"]


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
        seen = np.zeros((0, 2), dtype=np.int32)
        if has_penalties(request.request.sampling):
            tokens = self._columns.history(request.slot_id)
            seen = _seen_tokens(tokens, request.num_prompt_tokens)
        sizes, device = self._tables.sizes, self._tables.rows.device
        width = sizes.seen_begin + seen.size
        shape, is_pinned = (1, sizes.row_width), device.type == "cuda"
        host = torch.zeros(shape, dtype=torch.int32, pin_memory=is_pinned)
        _describe(request, seen, LogitRuleTables(host, sizes))
        row = self._tables.rows[request.slot_id, :width]
        row.copy_(host[0, :width], non_blocking=True)


def _describe(request: ActiveRequest, seen: npt.NDArray[np.int32], tables: LogitRuleTables) -> None:
    """Put the rules of a request into the only slot of `tables`, which are empty."""
    sampling, stops = request.request.sampling, sorted(request.stop_rules.token_ids)
    tables.factors[0] = torch.tensor(
        [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
    )
    tables.num_seen[0], tables.num_biases[0] = len(seen), len(sampling.logit_bias)
    tables.num_stops[0] = len(stops)
    tables.min_positions[0] = request.num_prompt_tokens + request.stop_rules.ignored_below
    tables.seen[0, : len(seen)] = torch.from_numpy(seen)
    tables.stop_token_ids[0, : len(stops)] = torch.tensor(stops, dtype=torch.int32)
    if sampling.logit_bias:
        token_ids, biases = zip(*sampling.logit_bias, strict=True)
        tables.bias_token_ids[0, : len(token_ids)] = torch.tensor(token_ids, dtype=torch.int32)
        tables.biases[0, : len(biases)] = torch.tensor(biases)


def _seen_tokens(tokens: npt.NDArray[np.int32], num_prompt_tokens: int) -> npt.NDArray[np.int32]:
    """The distinct tokens of prompt and output and how often each is in the output, [n, 2]."""
    token_ids, places = np.unique(tokens, return_inverse=True)
    counts = np.bincount(places[num_prompt_tokens:], minlength=len(token_ids))
    return np.stack([token_ids, counts.astype(np.int32)], axis=1)
