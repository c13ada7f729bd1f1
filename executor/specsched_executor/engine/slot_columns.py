"""What steps ask of the requests that hold a slot, as arrays by slot.

A step asks the same of hundreds of requests: one numpy operation on a column takes what Python
takes for three of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.sampling import alters_logits, has_logit_rules

__all__ = ["SlotColumns", "Slots"]

Slots = npt.NDArray[np.int64]
"""Slot ids of some requests, [R]; the answers below are [R] too."""


class SlotColumns:
    """Arrays by slot, [S]; those of free slots mean nothing. One thread.

    Of the request, as admitted: generation (0: the slot is free), seed, max_total_tokens (prompt
    and output at most), min_tokens (prompt and output before which a stop token is held off) int64;
    weight, temperature, min_p, top_p float32; draft_temperature float32, what drafts are drawn at:
    the likeliest token agrees most often with a sample that is kept; top_k int64; is_greedy,
    keeps_own_sample, has_logit_rules bool; is_told_apart bool, what becomes of its drafts says
    little of others'; wants_logprobs bool, of its output or its prompt.

    Of its progress: num_tokens, prompt and output known, anchor last; num_cached_tokens, leading
    ones whose keys and values are in the cache; num_draft_tokens, drafts present, made at the end
    of the last step; was_offered_draft bool; num_blocks and block_tables int32 [S, max_blocks], its
    KV blocks. Where steps overlap, besides: min_in_flight_tokens and max_in_flight_tokens, what
    launched steps will commit (tokens known are all cached then); is_anchor_on_device bool, a
    launched step sampled, so only the device has the anchor.
    """

    def __init__(
        self,
        num_slots: int,
        max_blocks: int,
        max_context_tokens: int,
        *,
        has_recorded_outcomes: bool = False,
    ) -> None:
        self._max_context_tokens = max_context_tokens
        self._has_recorded_outcomes = has_recorded_outcomes

        def column(dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
            return np.zeros(num_slots, dtype)

        self.generation = column()
        self.seed = column()
        self.max_total_tokens = column()
        self.min_tokens = column()
        self.weight = column(np.float32)
        self.temperature = column(np.float32)
        self.draft_temperature = column(np.float32)
        self.min_p = column(np.float32)
        self.top_p = column(np.float32)
        self.top_k = column()
        self.is_greedy = column(np.bool_)
        self.keeps_own_sample = column(np.bool_)
        self.has_logit_rules = column(np.bool_)
        self.is_told_apart = column(np.bool_)
        self.wants_logprobs = column(np.bool_)

        self.num_tokens = column()
        self.num_cached_tokens = column()
        self.num_draft_tokens = column()
        self.was_offered_draft = column(np.bool_)
        self.min_in_flight_tokens = column()
        self.max_in_flight_tokens = column()
        self.is_anchor_on_device = column(np.bool_)
        self.num_blocks = column()
        self.block_tables = np.zeros((num_slots, max_blocks), dtype=np.int32)

    @property
    def num_slots(self) -> int:
        """S."""
        return len(self.generation)

    def enter(self, request: ActiveRequest) -> None:
        """Describe a request that was given a slot; nothing of it is cached."""
        slot, sampling = request.slot_id, request.request.sampling
        self.generation[slot] = request.generation
        self.seed[slot] = request.seed
        self.max_total_tokens[slot] = request.max_total_tokens
        self.min_tokens[slot] = request.num_prompt_tokens + request.stop_rules.ignored_below
        self.weight[slot] = request.request.weight
        self.temperature[slot] = sampling.temperature
        self.min_p[slot] = sampling.min_p
        self.top_p[slot] = sampling.top_p
        self.top_k[slot] = sampling.top_k
        self.is_greedy[slot] = request.is_greedy
        is_kept = sampling.keeps_own_sample and not self._has_recorded_outcomes
        self.keeps_own_sample[slot] = is_kept
        self.draft_temperature[slot] = 0.0 if is_kept else sampling.temperature
        self.has_logit_rules[slot] = has_logit_rules(sampling)
        self.is_told_apart[slot] = is_kept or alters_logits(sampling)
        wanted = (sampling.logprobs, sampling.prompt_logprobs)
        self.wants_logprobs[slot] = any(each is not None for each in wanted)
        self.num_tokens[slot] = len(request.tokens)
        for progress in (
            self.num_cached_tokens,
            self.num_draft_tokens,
            self.was_offered_draft,
            self.min_in_flight_tokens,
            self.max_in_flight_tokens,
            self.is_anchor_on_device,
            self.num_blocks,
        ):
            progress[slot] = 0
        self.set_blocks(request)

    def leave(self, slot: int) -> None:
        """The slot is free."""
        self.generation[slot] = 0

    def set_blocks(self, request: ActiveRequest) -> None:
        """Note the blocks that a request holds now: more at the end, or fewer."""
        slot, num_blocks = request.slot_id, len(request.block_ids)
        known = self.num_blocks[slot]
        self.block_tables[slot, known:num_blocks] = request.block_ids[known:]
        self.num_blocks[slot] = num_blocks

    # ===================== Questions =====================

    def hold(self, slots: Slots, generations: Slots) -> npt.NDArray[np.bool_]:
        """Whether these requests still hold these slots."""
        hold: npt.NDArray[np.bool_] = self.generation[slots] == generations
        return hold

    def num_pending_tokens(self, slots: Slots) -> Slots:
        """Tokens not in the cache yet: 1, the anchor, while decoding; more inside a prefill."""
        pending: Slots = self.num_tokens[slots] - self.num_cached_tokens[slots]
        return pending + (self.max_in_flight_tokens[slots] > 0)

    def max_num_tokens(self, slots: Slots) -> Slots:
        """Tokens known, and those that launched steps may still commit."""
        most: Slots = self.num_tokens[slots] + self.max_in_flight_tokens[slots]
        return most

    def max_useful_drafts(self, slots: Slots) -> Slots:
        """Drafts of which each could still be output: one place is the bonus token's.

        Launched steps are taken to commit as few tokens as they may: what turns out to stand past
        the output's end is discarded. None may stand past the context, whatever they commit.
        """
        least = self.num_tokens[slots] + self.min_in_flight_tokens[slots]
        left = self.max_total_tokens[slots] - least - 1
        room = self._max_context_tokens - self.max_num_tokens(slots) - 1
        return np.maximum(np.minimum(left, room), 0)

    def surely_end(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether a launched step commits their last token, whatever that is."""
        is_last = self.num_tokens[slots] + 1 >= self.max_total_tokens[slots]
        surely: npt.NDArray[np.bool_] = is_last & (self.max_in_flight_tokens[slots] > 0)
        return surely

    def hold_off_stops(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether tokens that would end the output may still be impossible."""
        hold_off: npt.NDArray[np.bool_] = self.num_tokens[slots] < self.min_tokens[slots]
        return hold_off

    def are_ruled(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether their logits may be changed before they are sampled from."""
        return self.has_logit_rules[slots] | self.hold_off_stops(slots)

    def teach(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether drafts of the step to come are judged by the target's own distribution."""
        teach: npt.NDArray[np.bool_] = ~(self.hold_off_stops(slots) | self.is_told_apart[slots])
        return teach
