"""Where the processes are found unless told otherwise."""

from __future__ import annotations

DEFAULT_TARGET = "127.0.0.1:50051"
"""The executor's API."""

DEFAULT_TIMEOUT_S = 10.0
"""For calls that only ask for facts."""

LANE_TIMEOUT_S = 15.0
"""For calls that have executors follow another scheduler, each of which has ten seconds to."""
