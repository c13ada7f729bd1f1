"""`specsched doctor`."""

from __future__ import annotations

import typer
from specsched_protocol.exit_codes import ExitCode

from specsched_client.cli._options import (
    DEFAULT_TARGET,
    JsonOption,
    RunDirOption,
    TargetOption,
    TimeoutOption,
)


def doctor(
    target: TargetOption = DEFAULT_TARGET,
    run_dir: RunDirOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Look for what is wrong on this machine, and say how to mend it; nothing is changed.

    Run it as the user of the processes. Exits with 1 where something does not work.
    """
    from specsched_client.cli._discovery import run_dir_root
    from specsched_client.cli.doctor.examination import examine, print_findings, worst_of
    from specsched_client.cli.doctor.findings import Severity

    findings = examine(run_dir_root(run_dir), target, timeout_s=timeout)
    print_findings(findings, as_json=json)
    if worst_of(findings) is Severity.ERROR:
        raise typer.Exit(ExitCode.FAILED)
