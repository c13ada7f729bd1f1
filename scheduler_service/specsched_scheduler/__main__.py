"""`python -m specsched_scheduler`: run a scheduler."""

from __future__ import annotations

from specsched_protocol.ending import leaving_when_told

if __name__ == "__main__":
    with leaving_when_told(0):  # until the process takes the signals itself
        from specsched_protocol.settings import run_command

        from specsched_scheduler.commands import scheduler

        run_command(scheduler)
