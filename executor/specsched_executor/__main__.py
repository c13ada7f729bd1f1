"""`python -m specsched_executor`: run an executor."""

from __future__ import annotations

from specsched_protocol.settings import run_command

from specsched_executor.commands import executor

if __name__ == "__main__":
    run_command(executor)
