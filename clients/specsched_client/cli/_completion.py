"""What a shell completes beside commands and options. Silent where there is nothing to find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import typer

__all__ = ["POLICIES", "complete_policy", "complete_scheduler"]

POLICIES: Final = (
    "throughput",
    "ratio",
    "greedy-causal",
    "fixed(",
    "threshold(",
    "slo(",
    "off",
)
"""Those that every scheduler has; an open parenthesis wants a number."""


def complete_scheduler(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Names of the schedulers in the run directory."""
    from specsched_client._errors import InvalidRequestError
    from specsched_client.cli._discovery import find_schedulers

    try:
        found = find_schedulers(context.params.get("run_dir"), None)
    except InvalidRequestError:
        return
    yield from (name for name in found if name.startswith(incomplete))


def complete_policy(incomplete: str) -> Iterator[str]:
    """Beginnings of policies."""
    yield from (policy for policy in POLICIES if policy.startswith(incomplete))
