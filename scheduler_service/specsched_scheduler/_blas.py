"""Settings of numpy's BLAS that have to be made before it is loaded."""

from __future__ import annotations

import os

__all__ = ["start_one_thread"]


def start_one_thread() -> None:
    """Have OpenBLAS start no threads, unless the user chose otherwise.

    It starts one for each core as it is loaded, and each spins for some 18 ms before it sleeps. One
    of them gets the core of an executor's engine, whose steps then wait for a scheduler that does
    no more than start. The largest product here has a few dozen rows.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
