"""`python -m specsched_scheduler`: run a scheduler."""

from __future__ import annotations

from specsched_protocol.settings import run_command

from specsched_scheduler.commands import scheduler

if __name__ == "__main__":
    run_command(scheduler)
