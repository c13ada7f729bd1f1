"""What docs/operations.md shows of policies and of the Python client, run as it stands there."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from specsched_scheduler.decision import StepView
from specsched_scheduler.policies import build_policy, registry

from scripts.gen_docs import EXAMPLES
from tests.clients.conftest import FakeScheduler
from tests.repository import ROOT
from tests.scheduler_service.policies.steps import TABLE, step

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def _shown(word: str) -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", OPERATIONS, flags=re.DOTALL)
    (block,) = (each for each in blocks if re.search(rf"\b{word}\b", each))
    names: dict[str, Any] = {}
    exec(block, names)
    return names


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_policies_are_accepted_as_typed(text: str) -> None:
    assert build_policy(text).spec.name == text.partition("(")[0]


def test_policy_of_a_package_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_package")
    module.__dict__.update(_shown("Half"))
    monkeypatch.setitem(sys.modules, "my_package", module)
    point = EntryPoint("half", "my_package:Half", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    view = StepView(step(), TABLE)
    assert build_policy("half(1)").decide(view).budget == view.num_drafts() > 0


@pytest.mark.parametrize("client", ["SchedulerClient", "AsyncSchedulerClient"])
def test_client_sets_a_policy(
    client: str, start_scheduler: Callable[[str], FakeScheduler], tmp_path: Path
) -> None:
    scheduler = start_scheduler("default")
    target = f"unix:{tmp_path}/run/schedulers/default.sock"
    answer = _shown(client)["use"](target, "fixed(3)")
    previous = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    assert (previous, scheduler.policy.name) == ("throughput", "fixed")


def test_client_shows_text_as_it_comes(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    _shown("Client")["show"](target, [{"role": "user", "content": "hello"}])
    assert capsys.readouterr().out == "hello world good bye\n4 tokens, stop\n"
