"""What the packages offer by name: the client's names are a promise, all others at least exist."""

from __future__ import annotations

import ast
import importlib

import pytest
import specsched_client

from tests.repository import PACKAGES, sources

CLIENT_NAMES = {
    "AsyncClient",
    "AsyncSchedulerClient",
    "Client",
    "Completion",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "Delta",
    "FakeTransport",
    "InvalidRequestError",
    "MissingDependencyError",
    "OverloadedError",
    "Sampling",
    "SchedulerClient",
    "ServerError",
    "SpecschedError",
    "TokenLogprob",
    "UnsupportedError",
}


def modules_with_names() -> list[str]:
    """Modules that declare `__all__`, by their dotted name."""
    found = []
    for package, root in PACKAGES.items():
        for path in sources(package):
            tree = ast.parse(path.read_text())
            targets = [
                ast.unparse(t) for n in tree.body if isinstance(n, ast.Assign) for t in n.targets
            ]
            if "__all__" in targets and "triton" not in path.parts:
                parts = path.relative_to(root).with_suffix("").parts
                found.append(".".join(parts).removesuffix(".__init__"))
    return found


def test_the_client_offers_just_these_names():
    assert set(specsched_client.__all__) == CLIENT_NAMES


@pytest.mark.parametrize("module", modules_with_names())
def test_every_promised_name_exists(module):
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert len(set(loaded.__all__)) == len(loaded.__all__)
