"""Settings of gRPC's core that have to be made before it is loaded. Leaf: standard library only."""

from __future__ import annotations

import os

__all__ = ["quiet_grpc_core"]


def quiet_grpc_core() -> None:
    """Let gRPC's core log errors only, unless the user chose otherwise.

    It writes to stderr by itself, past the log, and by default a line for each connection that a
    peer closes. It reads the setting as it is loaded.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
