from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from specsched_executor.attach import AttachManager
from specsched_protocol.run_dir import RunDir

from tests.executor.attach.support import FACTS, FAST, RecordingLanes


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir.open(tmp_path / "run")


@pytest.fixture
def lanes() -> RecordingLanes:
    return RecordingLanes()


@pytest.fixture
def attacher(run_dir, lanes) -> Iterator[Callable[..., AttachManager]]:
    managers: list[AttachManager] = []

    def make(**changes: int) -> AttachManager:
        config = dataclasses.replace(FAST, **changes)
        manager = AttachManager(run_dir, lanes, FACTS, config)
        managers.append(manager)
        manager.start()
        return manager

    yield make
    for manager in managers:
        manager.stop()
