"""Rows of the per-request tables."""

from __future__ import annotations

__all__ = ["SlotTable"]

_GENERATION_LIMIT = 1 << 32


class SlotTable:
    """Fixed rows; `generation` counts the reuse of each, so that nothing old is taken for new."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(reversed(range(num_slots)))
        self._generations = [0] * num_slots

    @property
    def num_free(self) -> int:
        """Rows without a request."""
        return len(self._free)

    def take(self) -> tuple[int, int]:
        """(slot_id, generation) of a free row; the caller has looked at `num_free`."""
        slot_id = self._free.pop()
        generation = (self._generations[slot_id] + 1) % _GENERATION_LIMIT
        self._generations[slot_id] = generation
        return slot_id, generation

    def give_back(self, slot_id: int) -> None:
        """Free a row."""
        self._free.append(slot_id)
