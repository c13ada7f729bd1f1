"""Which requests hold a slot and KV blocks: arrival order in, youngest out."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from specsched_executor.core import PAD_SLOT
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.engine.slots import SlotTable

__all__ = ["Residency"]


class Residency:
    """Waiting and running requests, and the room the running ones hold.

    Every running request is older than every waiting one: requests are admitted in arrival order
    and the youngest is preempted first, to be recomputed. So the oldest always advances, and since
    each fits the empty cache (checked at submission) all of them end.
    """

    def __init__(
        self, pool: BlockPool, columns: SlotColumns, on_release: Callable[[int], None]
    ) -> None:
        """`on_release` is told each slot that is freed."""
        self._pool = pool
        self._columns = columns
        self._slots = SlotTable(columns.num_slots)
        self._on_release = on_release
        self._waiting: OrderedDict[ActiveRequest, None] = OrderedDict()
        self._running: dict[ActiveRequest, None] = {}
        self._running_slots: Slots = np.zeros(0, dtype=np.int64)
        self._holders: list[Any] = [None] * columns.num_slots
        self.num_preemptions = 0

    @property
    def running(self) -> tuple[ActiveRequest, ...]:
        """Requests with a slot, oldest first."""
        return tuple(self._running)

    @property
    def running_slots(self) -> Slots:
        """Slots of `running`, in the same order; not to be changed."""
        return self._running_slots

    def first_waiting(self, max_requests: int) -> list[ActiveRequest]:
        """Requests without one, oldest first: so many of them at most."""
        return list(itertools.islice(self._waiting, max_requests))

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests without one."""
        return len(self._waiting)

    def requests(self, slots: Slots) -> list[ActiveRequest]:
        """Who holds these slots."""
        holders: list[ActiveRequest] = self._holders
        return [holders[slot] for slot in slots.tolist()]

    def queue(self, request: ActiveRequest) -> None:
        """Add the newest request."""
        self._waiting[request] = None

    def admit_next(self) -> ActiveRequest | None:
        """Give the oldest waiting request a slot and blocks for all its tokens, if there is room.

        A block for each running request is left over, lest the newcomer be preempted at once.
        """
        if not self._waiting or not self._slots.num_free:
            return None
        request = next(iter(self._waiting))
        num_blocks = self._pool.blocks_for(request.num_tokens)
        if self._pool.num_free < num_blocks + len(self._running):
            return None
        del self._waiting[request]
        request.slot_id, request.generation = self._slots.take()
        self._holders[request.slot_id] = request
        self._running[request] = None  # from here on a fault concerns it too
        self._running_slots = np.concatenate((self._running_slots, (request.slot_id,)))
        self._columns.enter(request)
        self.grow(request, request.num_tokens)
        return request

    def secure(self, request: ActiveRequest) -> bool:
        """Make sure that a request has blocks for all its tokens, whatever that takes.

        Takes back blocks held for drafts first, then preempts, youngest first. False where the
        request itself had to go.
        """
        num_tokens = self._max_num_tokens(request)
        if not self.grow(request, num_tokens):
            for other in self._running:
                self._shrink(other)
        while not self.grow(request, num_tokens):
            victim = next(reversed(self._running))
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def grow(self, request: ActiveRequest, num_tokens: int) -> bool:
        """Blocks for `num_tokens` from what is free; False (and unchanged) if there are too few."""
        return self.grow_all(np.array([request.slot_id]), np.array([num_tokens]))

    def grow_all(self, slots: Slots, num_tokens: Slots) -> bool:
        """The same for many requests at once; False (and all unchanged) if there are too few."""
        missing = self.num_missing_blocks(slots, num_tokens)
        num_missing = int(missing.sum())
        block_ids = self._pool.take(num_missing)
        if block_ids is None:
            return False
        if num_missing:
            short = missing > 0
            self._columns.add_blocks(slots[short], missing[short], block_ids)
        return True

    def num_missing_blocks(self, slots: Slots, num_tokens: Slots) -> Slots:
        """Blocks that each of these requests lacks for that many tokens."""
        needed = -(-num_tokens // self._pool.block_size)
        missing: Slots = np.maximum(needed - self._columns.num_blocks[slots], 0)
        return missing

    def drop(self, request: ActiveRequest) -> None:
        """Forget a request, wherever it is; one that is nowhere any more is left alone."""
        if request.slot_id != PAD_SLOT:
            del self._running[request]
            self._release(request)
        else:
            self._waiting.pop(request, None)

    def _preempt(self, request: ActiveRequest) -> None:
        del self._running[request]
        self._release(request)
        self._waiting[request] = None
        self._waiting.move_to_end(request, last=False)
        self.num_preemptions += 1

    def _release(self, request: ActiveRequest) -> None:
        slot_id = request.slot_id
        self._pool.give_back(self._columns.take_blocks(slot_id, 0))
        self._slots.give_back(slot_id)
        self._columns.leave(request)
        self._holders[slot_id] = None
        self._running_slots = self._running_slots[self._running_slots != slot_id]
        request.slot_id = PAD_SLOT
        self._on_release(slot_id)  # last: should it raise, the slot and the blocks are free

    def _shrink(self, request: ActiveRequest) -> None:
        num_needed = self._pool.blocks_for(self._max_num_tokens(request))
        self._pool.give_back(self._columns.take_blocks(request.slot_id, num_needed))

    def _max_num_tokens(self, request: ActiveRequest) -> int:
        slot = request.slot_id
        return int(self._columns.num_tokens[slot] + self._columns.max_in_flight_tokens[slot])
