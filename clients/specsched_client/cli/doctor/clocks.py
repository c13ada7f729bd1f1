"""The clocks that processes of one machine compare.

Heartbeats and decisions carry CLOCK_MONOTONIC, which is one clock for all processes of a machine
unless one of them runs in a time namespace of its own. What is old in the run directory is told by
the wall clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from specsched_client.cli.doctor.directory import Peer
from specsched_client.cli.doctor.findings import Code, Finding, Severity

__all__ = ["check_clocks"]

_TOLERANCE_S = 60.0
_PROC = Path("/proc")


def check_clocks(root: Path, peers: Sequence[Peer]) -> list[Finding]:
    """Whether the processes behind `peers` and this one have one clock, and it did not go back."""
    found = [*_check_namespaces(peers), *_check_future(root)]
    if not found:
        found.append(Finding(Code.CLOCK, Severity.OK, "all processes in sight have one clock"))
    return found


def _check_namespaces(peers: Sequence[Peer]) -> list[Finding]:
    spaces: dict[str, list[str]] = {}
    for peer in peers:
        space = _time_namespace(peer.pid)
        if space is not None:
            spaces.setdefault(space, []).append(f"{peer.path} (pid {peer.pid})")
    if len(spaces) < 2:
        return []
    sides = " and ".join(", ".join(names) for names in spaces.values())
    what = f"{sides} are in different time namespaces: their monotonic clocks differ"
    remedy = (
        "start them without a time namespace of their own (unshare --time, timens of a container):"
        " a scheduler in another one looks hung, and is given up"
    )
    return [Finding(Code.CLOCK_NAMESPACE, Severity.ERROR, what, remedy)]


def _time_namespace(pid: int) -> str | None:
    try:
        return os.readlink(_PROC / str(pid) / "ns" / "time") if pid else None
    except OSError:  # another user's, gone, or a kernel without time namespaces
        return None


def _check_future(root: Path) -> list[Finding]:
    now = time.time()
    for path in (*root.glob("schedulers/*"), *root.glob("executors/*/*")):
        try:
            ahead_s = path.lstat().st_mtime - now
        except FileNotFoundError:
            continue
        if ahead_s > _TOLERANCE_S:
            what = f"{path} is {ahead_s:.0f} s younger than now: the wall clock went back"
            remedy = (
                "set the clock (chronyc makestep, timedatectl) and restart the process: what killed"
                " executors left is removed by age, and certificates are judged by this clock"
            )
            return [Finding(Code.CLOCK_FUTURE, Severity.WARNING, what, remedy)]
    return []
