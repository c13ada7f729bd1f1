"""All checks, and their findings as text or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.text import Text
from specsched_protocol.console import to_stdout

from specsched_client.cli._console import print_json
from specsched_client.cli._status_report import gather_report
from specsched_client.cli.doctor.clocks import check_clocks
from specsched_client.cli.doctor.directory import check_run_dir, check_sockets
from specsched_client.cli.doctor.findings import Code, Finding, Severity
from specsched_client.cli.doctor.gpu import check_gpu, gpu_nodes
from specsched_client.cli.doctor.huge_pages import check_huge_pages
from specsched_client.cli.doctor.memory import check_shared_memory
from specsched_client.cli.doctor.processes import check_processes

__all__ = ["examine", "print_findings", "worst_of"]

_STYLES: Final = {
    Severity.OK: "green",
    Severity.NOTE: "dim",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
}


def examine(root: Path, target: str, *, timeout_s: float) -> list[Finding]:
    """Everything about the run directory `root`, the executor at `target` and this machine."""
    folders = check_run_dir(root)
    sockets, peers = check_sockets(root)
    live = {
        peer.path.stem: f"unix:{peer.path}" for peer in peers if peer.path.name != "handoff.sock"
    }
    report = asyncio.run(gather_report(target, live, root, timeout_s=timeout_s))
    return [
        *folders,
        *sockets,
        *check_processes(report, live),
        *check_shared_memory(),
        *([] if gpu_nodes() else [check_huge_pages()]),
        *check_clocks(root, peers),
        *check_gpu(),
    ]


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print to stdout, the findings in order of what was looked at."""
    worst = worst_of(findings)
    if as_json:
        print_json({"worst": worst, "findings": [asdict(each) for each in findings]})
        return
    console = to_stdout()
    for each in findings:
        mark = Text(f"{each.severity:8}", style=_STYLES[each.severity])
        console.print(mark + Text(f"{each.code}: {each.what}"), soft_wrap=True)
        if each.remedy:
            console.print(Text(f"{'':8}-> {each.remedy}"), soft_wrap=True)
    console.print(_summary(findings), soft_wrap=True)


def _summary(findings: Sequence[Finding]) -> str:
    num_errors = sum(each.severity is Severity.ERROR for each in findings)
    num_warnings = sum(each.severity is Severity.WARNING for each in findings)
    counts = f"{_count(num_errors, 'error')}, {_count(num_warnings, 'warning')}"
    if any(each.code is Code.SOCKET for each in findings):
        return counts
    return f"{counts}; no scheduler and no executor listens in the run directory"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def worst_of(findings: Sequence[Finding]) -> Severity:
    """The most severe of all."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)
