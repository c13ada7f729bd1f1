"""Requests in flight without a pause, each answer compared with what it must be."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from specsched_client import Client, Sampling, SpecschedError

__all__ = ["Load", "Phase", "reference_answers"]

TIMEOUT_S = 600.0
# They repeat themselves, so that prompt lookup has something to propose.
_TEXTS = (
    "Count from 1 to 30, one number per line.",
    "Repeat this line ten times: the cat sat on the mat.",
    "Write a Python class Point with x and y, then the same class again.",
    "List the days of the week twice.",
)


@dataclass
class Phase:
    """What the clients saw while it lasted. gaps_s: between two deltas of one stream.

    num_different: answers unlike those without schedulers, where that is no fault.
    """

    gaps_s: list[float] = field(default_factory=list)
    num_answers: int = 0
    num_different: int = 0


@dataclass
class Load:
    """`concurrency` clients that ask one request after the other until stopped.

    is_exact: an answer unlike the one expected is a fault. On a GPU rounding depends on how many
    rows are computed together, so that a greedy answer may change with what is verified.
    """

    target: str
    expected: dict[str, tuple[int, ...]]
    sampling: Sampling
    is_exact: bool = True
    faults: list[str] = field(default_factory=list)
    phase: Phase = field(default_factory=Phase)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, concurrency: int) -> None:
        """Begin to ask."""
        texts = list(self.expected)
        for index in range(concurrency):
            text = texts[index % len(texts)]
            thread = threading.Thread(target=self._ask, args=[text], daemon=True)
            self._threads.append(thread)
            thread.start()

    def pass_answers(self, number: int) -> None:
        """Wait until every client had so many answers on average."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.phase.num_answers < number * len(self._threads) and not self.faults:
            if time.monotonic() > deadline:
                self.faults.append(f"{self.phase.num_answers} answers in {TIMEOUT_S:g} s")
            time.sleep(0.1)

    def stop(self) -> None:
        """Let the requests in flight end, and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            if thread.is_alive():
                self.faults.append("a request hangs")

    def begin_phase(self) -> Phase:
        """Count for another phase from now on; returns the one before."""
        previous, self.phase = self.phase, Phase()
        return previous

    def _ask(self, text: str) -> None:
        with Client(self.target) as client:
            while not self._stop.is_set():
                try:
                    answer = self._stream(client, text)
                except SpecschedError as error:
                    self.faults.append(f"{text!r}: {type(error).__name__}: {error}")
                    return
                if answer != self.expected[text]:
                    if self.is_exact:
                        self.faults.append(f"{text!r}: another answer than without schedulers")
                        return
                    self.phase.num_different += 1
                self.phase.num_answers += 1

    def _stream(self, client: Client, text: str) -> tuple[int, ...]:
        tokens: list[int] = []
        last = None
        for delta in client.stream(text, self.sampling, timeout_s=TIMEOUT_S):
            now = time.monotonic()
            if last is not None and delta.token_ids:
                self.phase.gaps_s.append(now - last)
            last = now
            tokens += delta.token_ids
        return tuple(tokens)


def reference_answers(target: str, sampling: Sampling) -> dict[str, tuple[int, ...]]:
    """What an executor answers alone: one request at a time."""
    with Client(target) as client:
        return {
            text: client.generate(text, sampling, timeout_s=TIMEOUT_S).token_ids for text in _TEXTS
        }
