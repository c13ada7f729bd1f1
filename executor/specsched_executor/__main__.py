"""`python -m specsched_executor`: run an executor."""

from __future__ import annotations

import typer

from specsched_executor.commands import executor

if __name__ == "__main__":
    typer.run(executor)
