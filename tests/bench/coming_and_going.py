"""`python -m tests.bench.coming_and_going SECONDS USERS TOKENS FD...`: users that ask anew.

Each FD is the front end's end of a connection to an engine. Users are spread over them: each asks
for TOKENS tokens, again whenever it has its answer, until the connection is closed. The first
answers are of all lengths, so that about as many end in each step.
"""

from __future__ import annotations

import itertools
import random
import socket
import sys
import threading
from collections.abc import Iterator

from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel

PROMPT_TOKENS = (40, 60)


class Users:
    """Those that ask over one connection."""

    def __init__(self, channel: Channel, name: str, num_tokens: int) -> None:
        self._channel = channel
        self._name = name
        self._num_tokens = num_tokens
        self._keys: Iterator[int] = itertools.count()
        self._random = random.Random(name)

    def run(self, num_users: int) -> None:
        """Ask until nobody answers any more."""
        for _ in range(num_users):
            self._ask(self._random.randint(2, self._num_tokens))
        try:
            while True:
                for message in self._channel.receive():
                    for _, delta in m.Deltas.unpacked(message).others:
                        assert delta.finish_reason == "length", delta
                        self._ask(self._num_tokens)
        except (EOFError, OSError):
            return

    def _ask(self, num_tokens: int) -> None:
        key = next(self._keys)
        prompt = tuple(
            self._random.randrange(3, 40_000) for _ in range(self._random.randint(*PROMPT_TOKENS))
        )
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        request = GenerationRequest(f"{self._name}-{key}", prompt, sampling)
        self._channel.send(m.Submit(key, request))


def main() -> None:
    """Every connection has a thread."""
    num_users, num_tokens, *descriptors = (int(each) for each in sys.argv[1:])
    threads = [
        threading.Thread(
            target=Users(Channel(socket.socket(fileno=each)), str(each), num_tokens).run,
            args=(num_users // len(descriptors),),
        )
        for each in descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
