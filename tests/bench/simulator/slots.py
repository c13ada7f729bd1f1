"""The requests of a simulated executor, one array row per slot."""

from __future__ import annotations

import numpy as np

from tests.bench.simulator.workload import Requests, Workload

__all__ = ["Slots"]

NOBODY = -1


class Slots:
    """State by slot, [S] each.

    request: index among the drawn requests, or NOBODY. waiting_tokens: prompt rows still to run.
    output: tokens put out. num_drafts: how many drafts a request was given. draft_row, draft_len:
    the drafts present; was_offered: whether one was asked for. started_ms: of the first token.
    finished: (request, ms per token) of those that ended.
    """

    def __init__(self, workload: Workload, requests: Requests) -> None:
        size = workload.concurrency
        self.workload, self.requests = workload, requests
        self.request = np.full(size, NOBODY, dtype=np.int64)
        self.generation = np.zeros(size, dtype=np.int64)
        self.waiting_tokens = np.zeros(size, dtype=np.int64)
        self.output = np.zeros(size, dtype=np.int64)
        self.num_drafts = np.zeros(size, dtype=np.int64)
        self.draft_row = np.zeros(size, dtype=np.int64)
        self.draft_len = np.zeros(size, dtype=np.int64)
        self.was_offered = np.zeros(size, dtype=bool)
        self.started_ms = np.zeros(size)
        self.num_drawn = 0
        self.finished: list[tuple[int, float]] = []
        if workload.requests_per_second is None:
            self._begin_anywhere()

    @property
    def decodes(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Bool [S]: requests whose prompt has been run."""
        decodes: np.ndarray[tuple[int], np.dtype[np.bool_]] = (self.request != NOBODY) & (
            self.waiting_tokens == 0
        )
        return decodes

    def context(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Int64 [S]: tokens in the cache."""
        prompt = self.requests.prompt_tokens[self.request]
        context: np.ndarray[tuple[int], np.dtype[np.int64]] = (
            prompt - self.waiting_tokens + self.output
        )
        return context

    def give_drafts(self, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Have these requests get the recorded drafts that are theirs now."""
        recordings = self.workload.recordings
        place = self.num_drafts if recordings.is_by_step else self.output
        place = place[slots] % recordings.row_at.shape[1]
        recording = self.requests.recording[self.request[slots]]
        self.draft_row[slots] = recordings.row_at[recording, place]
        self.num_drafts[slots] += 1

    def num_left(self, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray:
        """Tokens that these requests still want."""
        return self.requests.output_tokens[self.request[slots]] - self.output[slots]

    def admit(self, now_ms: float) -> None:
        """Give free slots to those who have come, in order."""
        for slot in np.flatnonzero(self.request == NOBODY):
            if self.requests.arrival_ms[self.num_drawn] > now_ms:
                return
            self._take(slot)
            self.waiting_tokens[slot] = self.requests.prompt_tokens[self.request[slot]]

    def finish(self, slots: np.ndarray[tuple[int], np.dtype[np.int64]], now_ms: float) -> None:
        """End those of `slots` that have all they want."""
        for slot in slots[self.num_left(slots) <= 0]:
            num_tokens = int(self.output[slot])
            pace = (now_ms - self.started_ms[slot]) / num_tokens
            self.finished.append((int(self.request[slot]), pace))
            self.request[slot] = NOBODY
            self.draft_len[slot] = 0

    def _take(self, slot: int) -> None:
        self.request[slot] = self.num_drawn
        self.num_drawn += 1
        self.generation[slot] += 1
        self.output[slot] = 0
        self.num_drafts[slot] = 0
        self.draft_len[slot] = 0

    def _begin_anywhere(self) -> None:
        """A closed loop is met in the middle: requests are at different places of their answers."""
        for slot in range(len(self.request)):
            self._take(slot)
            wanted = self.requests.output_tokens[self.request[slot]]
            self.output[slot] = self.num_drafts[slot] = (slot * 7919) % wanted
            self.started_ms[slot] = np.nan
