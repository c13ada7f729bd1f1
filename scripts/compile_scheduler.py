"""Compile what a scheduler runs and keep it, before tests start schedulers in limited time.

python -m scripts.compile_scheduler    # a minute or two the first time, seconds from then on
"""

from __future__ import annotations

from specsched_scheduler.learning.warm import warm_up_learning
from specsched_scheduler.planner import warm_up
from specsched_scheduler.telemetry.warm import warm_up_telemetry


def main() -> None:
    """As a scheduler that starts does."""
    warm_up()
    warm_up_telemetry(*warm_up_learning())


if __name__ == "__main__":
    main()
