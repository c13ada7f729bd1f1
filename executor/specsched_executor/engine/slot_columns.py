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

__all__ = ["SlotColumns", "Slots", "num_useful_drafts"]

Slots = npt.NDArray[np.int64]
"""Slot ids of some requests, [R]; the answers below are [R] too."""
NO_TOKEN = -1
_MAX_STOP_TOKENS = 8
"""Of a request, for them to be looked for in those of all requests at once."""


def num_useful_drafts(
    num_tokens: Any, min_in_flight: Any, max_in_flight: Any, max_total: Any, max_context: Any
) -> Any:
    """Drafts of which each could still be output: one place is the bonus token's.

    Launched steps are taken to commit as few tokens as they may: what turns out to stand past the
    output's end is discarded. None may stand past the context, whatever they commit. Of numbers or
    arrays, see the columns of these names.
    """
    left = max_total - (num_tokens + min_in_flight) - 1
    room = max_context - (num_tokens + max_in_flight) - 1
    return np.maximum(np.minimum(left, room), 0)


class SlotColumns:
    """Arrays by slot, [S]; those of free slots mean nothing. One thread.

    Of the request, as admitted: generation (0: the slot is free), seed, max_total_tokens (prompt
    and output at most), min_tokens (prompt and output before which a stop token is held off) int64;
    weight, temperature, min_p, top_p float32; draft_temperature float32, what drafts are drawn at:
    the likeliest token agrees most often with a sample that is kept; top_k int64; is_greedy,
    keeps_own_sample, has_logit_rules bool; is_told_apart bool, what becomes of its drafts says
    little of others'; wants_logprobs bool, of its output or its prompt. stop_token_ids int32
    [S, n], those that may end it, -1 where there are fewer; is_apart bool, its new tokens are
    looked at one by one: for stop strings, for more stop tokens than fit, for a sink of its own.
    sink_key, output_index, taker (int16): where its tokens go otherwise.

    Of its progress: num_tokens, prompt and output known, anchor last, and token_ids int32 [S,
    max_context_tokens], which they are; num_verified_tokens, num_accepted_tokens;
    num_cached_tokens, leading ones whose keys and values are in the cache; num_draft_tokens, drafts
    present, made at the end of the last step; was_offered_draft bool; num_blocks and block_tables
    int32 [S, max_blocks], its KV blocks. Where steps overlap, besides: min_in_flight_tokens and
    max_in_flight_tokens, what launched steps will commit (tokens known are all cached then);
    is_anchor_on_device bool, a launched step sampled, so only the device has the anchor.
    """

    def __init__(
        self,
        num_slots: int,
        max_blocks: int,
        max_context_tokens: int,
        *,
        has_recorded_outcomes: bool = False,
    ) -> None:
        """max_context_tokens: of a request; what is never reached takes no memory."""
        self.max_context_tokens = max_context_tokens
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
        self.stop_token_ids = np.full((num_slots, 1), NO_TOKEN, dtype=np.int32)
        self.is_apart = column(np.bool_)
        self.sink_key = column()
        self.output_index = column()
        self.taker = column(np.int16)

        self.num_tokens = column()
        self.token_ids = np.zeros((num_slots, max_context_tokens), dtype=np.int32)
        self.num_verified_tokens = column()
        self.num_accepted_tokens = column()
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
        self._enter_delivery(request)
        self.num_tokens[slot] = request.num_tokens
        self.token_ids[slot, : request.num_tokens] = request.tokens
        self.num_verified_tokens[slot] = request.num_verified_tokens
        self.num_accepted_tokens[slot] = request.num_accepted_tokens
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

    def _enter_delivery(self, request: ActiveRequest) -> None:
        slot, rules = request.slot_id, request.stop_rules
        num_ids = len(rules.token_ids)
        has_room = num_ids <= _MAX_STOP_TOKENS
        self.stop_token_ids[slot] = NO_TOKEN
        if has_room:
            missing = num_ids - self.stop_token_ids.shape[1]
            if missing > 0:
                wider = ((0, 0), (0, missing))
                self.stop_token_ids = np.pad(self.stop_token_ids, wider, constant_values=NO_TOKEN)
            self.stop_token_ids[slot, :num_ids] = list(rules.token_ids)
        sink = request.batched_sink
        self.is_apart[slot] = sink is None or rules.strings is not None or not has_room
        self.sink_key[slot] = 0 if sink is None else sink.key
        self.output_index[slot] = request.index
        self.taker[slot] = request.taker or 0

    def leave(self, request: ActiveRequest) -> None:
        """The slot is free; the request gets its tokens back."""
        slot = request.slot_id
        self.note_progress(request)
        request.tokens = self.token_ids[slot, : request.num_tokens].copy()
        self.generation[slot] = 0

    def note_progress(self, request: ActiveRequest) -> None:
        """Tell a request its counts."""
        slot = request.slot_id
        request.num_tokens = int(self.num_tokens[slot])
        request.num_verified_tokens = int(self.num_verified_tokens[slot])
        request.num_accepted_tokens = int(self.num_accepted_tokens[slot])

    def add_blocks(self, slots: Slots, num_new: Slots, block_ids: npt.NDArray[np.int32]) -> None:
        """Give each request num_new more blocks, [R], out of block_ids, [sum of num_new]."""
        first = np.repeat(self.num_blocks[slots] - (np.cumsum(num_new) - num_new), num_new)
        indexes = first + np.arange(len(block_ids))
        self.block_tables[np.repeat(slots, num_new), indexes] = block_ids
        self.num_blocks[slots] += num_new

    def take_blocks(self, slot: int, num_left: int) -> npt.NDArray[np.int32]:
        """Take the blocks from a request that follow its first `num_left`."""
        blocks: npt.NDArray[np.int32] = self.block_tables[slot, num_left : self.num_blocks[slot]]
        self.num_blocks[slot] = min(num_left, self.num_blocks[slot])
        return blocks

    # ===================== Questions =====================

    def hold(self, slots: Slots, generations: Slots) -> npt.NDArray[np.bool_]:
        """Whether these requests still hold these slots."""
        hold: npt.NDArray[np.bool_] = self.generation[slots] == generations
        return hold

    def history(self, slot: int) -> npt.NDArray[np.int32]:
        """Prompt and output, anchor last; a view."""
        tokens: npt.NDArray[np.int32] = self.token_ids[slot, : self.num_tokens[slot]]
        return tokens

    def num_pending_tokens(self, slots: Slots) -> Slots:
        """Tokens not in the cache yet: 1, the anchor, while decoding; more inside a prefill."""
        pending: Slots = self.num_tokens[slots] - self.num_cached_tokens[slots]
        return pending + (self.max_in_flight_tokens[slots] > 0)

    def max_num_tokens(self, slots: Slots) -> Slots:
        """Tokens known, and those that launched steps may still commit."""
        most: Slots = self.num_tokens[slots] + self.max_in_flight_tokens[slots]
        return most

    def max_useful_drafts(self, slots: Slots) -> Slots:
        """See `num_useful_drafts`."""
        useful: Slots = num_useful_drafts(
            self.num_tokens[slots],
            self.min_in_flight_tokens[slots],
            self.max_in_flight_tokens[slots],
            self.max_total_tokens[slots],
            self.max_context_tokens,
        )
        return useful

    def num_held_off(self, slots: Slots) -> Slots:
        """How many of the tokens to come may not end the output; below 0: there were more."""
        held_off: Slots = self.min_tokens[slots] - self.num_tokens[slots]
        return held_off

    def hold_off_stops(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether tokens that would end the output may still be impossible."""
        hold_off: npt.NDArray[np.bool_] = self.num_held_off(slots) > 0
        return hold_off

    def are_ruled(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether their logits may be changed before they are sampled from."""
        return self.has_logit_rules[slots] | self.hold_off_stops(slots)

    def teach(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether drafts of the step to come are judged by the target's own distribution."""
        teach: npt.NDArray[np.bool_] = ~(self.hold_off_stops(slots) | self.is_told_apart[slots])
        return teach
