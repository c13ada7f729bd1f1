"""An engine in this process, and where front ends of it are started."""

from __future__ import annotations

import pytest

from tests.executor.front_end.site import Site
from tests.executor.gateway.fakes import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def site(engine: FakeEngine) -> Site:
    return Site(engine)
