"""Settings of the OpenMP runtime that have to be made before it is loaded."""

from __future__ import annotations

import os
from typing import Final

_SPIN_COUNT: Final = "2000"


def bound_spinning() -> None:
    """Let OpenMP's threads wait actively for about 0.1 ms only, unless the user chose otherwise.

    GNU OpenMP spins some 10 ms at each barrier. A thread that spins for one which waits for its
    turn on the same core burns a whole time slice, and a step has hundreds of barriers: beside six
    busy processes on two cores a step of one row took 2000 ms, with this bound 170 ms, and 25 ms
    on idle cores with or without it. The runtime reads the setting as it is loaded,
    so this has to run before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
