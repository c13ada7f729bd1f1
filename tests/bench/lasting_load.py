"""Requests that go on for as long as something is measured."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from specsched_client import Client, Sampling

from tests.integration.processes import wait_until

TIMEOUT_S = 240.0


class LastingLoad:
    """A sampled request of each prompt; counts the tokens that their clients have received."""

    def __init__(self, client: Client, prompts: Sequence[list[int]], max_tokens: int) -> None:
        self._client = client
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._received = [0] * len(prompts)
        self._streams: list[Future[None]] = []
        self._ends = threading.Event()

    @property
    def num_tokens(self) -> int:
        """Received by all together."""
        return sum(self._received)

    def check(self) -> None:
        """Raise AssertionError where a request is over."""
        over = [index for index, stream in enumerate(self._streams) if stream.done()]
        assert not over, f"requests {over} ended within {self._max_tokens} tokens"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Wait until every request decodes; end them all after the block."""
        with ThreadPoolExecutor(len(self._prompts)) as pool:
            self._streams = [pool.submit(self._receive, n) for n in range(len(self._prompts))]
            try:
                wait_until(self._is_decoding, timeout_s=TIMEOUT_S)
                yield
            finally:
                self._ends.set()
                for stream in self._streams:
                    stream.result()

    def _is_decoding(self) -> bool:
        self.check()
        return all(self._received)

    def _receive(self, index: int) -> None:
        sampling = Sampling(seed=index, max_tokens=self._max_tokens, ignore_eos=True)
        stream = self._client.stream(self._prompts[index], sampling, timeout_s=TIMEOUT_S)
        with contextlib.closing(stream):
            for delta in stream:
                self._received[index] += len(delta.token_ids)
                if self._ends.is_set():
                    return
