"""An executor that answers at once, served on loopback for clients that block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executor.gateway.fakes import AnsweringEngine, serving_in_thread

ANSWER = (3, 4, 5, 6)
"""hello world good bye"""


@pytest.fixture
def engine() -> AnsweringEngine:
    return AnsweringEngine(lambda _: ANSWER)


@pytest.fixture
def target(engine: AnsweringEngine) -> Iterator[str]:
    with serving_in_thread(engine) as address:
        yield address
