"""`specsched policy get|set`."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from specsched_client.cli._completion import complete_policy
from specsched_client.cli._options import (
    JsonOption,
    RunDirOption,
    SchedulerOption,
    TimeoutOption,
)

policy_app = typer.Typer(
    help="See or replace the policy of a scheduler.", no_args_is_help=True, rich_markup_mode=None
)


@policy_app.command("get")
def get_policy(
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Print the policy that decides now."""
    from specsched_protocol.policy_text import policy_text

    from specsched_client import SchedulerClient
    from specsched_client.cli._discovery import find_scheduler

    name, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        answer = client.status(timeout_s=timeout)
    current = policy_text(answer.policy)
    if json:
        known = list(answer.policies)
        current = json_module.dumps({"scheduler": name, "policy": current, "policies": known})
    typer.echo(current)


@policy_app.command("set")
def set_policy(
    policy: Annotated[
        str,
        typer.Argument(
            help='NAME, NAME(VALUE, ...) or NAME(PARAMETER=VALUE, ...), e.g. "fixed(k=3)".',
            autocompletion=complete_policy,
        ),
    ],
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Replace the policy between two decisions; nothing is restarted."""
    from specsched_protocol.policy_text import policy_text

    from specsched_client import SchedulerClient
    from specsched_client._policy import to_policy_spec
    from specsched_client.cli._discovery import find_scheduler

    wanted = to_policy_spec(policy)
    name, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        answer = client.set_policy(wanted, timeout_s=timeout)
    now, before = policy_text(answer.policy), policy_text(answer.previous_policy)
    if json:
        typer.echo(json_module.dumps({"scheduler": name, "policy": now, "previous": before}))
    else:
        typer.echo(f"{name}: {before} -> {now}")
