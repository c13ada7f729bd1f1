"""`python -m specsched_scheduler`: run a scheduler."""

from __future__ import annotations

import typer

from specsched_scheduler.commands import scheduler

if __name__ == "__main__":
    typer.run(scheduler)
