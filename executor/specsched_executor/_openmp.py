"""Settings of the OpenMP runtime that have to be made before it is loaded."""

from __future__ import annotations

import os
from typing import Final

_SPIN_COUNT: Final = "200"


def bound_spinning() -> None:
    """Let OpenMP's threads wait actively for some 10 us only, unless the user chose otherwise.

    GNU OpenMP spins some 10 ms at each barrier. A thread that spins for one which waits for its
    turn on the same core burns a whole time slice, and a step has hundreds of barriers. The
    products of one step of 8 rows, on two cores of a machine with a load of 10, took with 300,000
    spins (the runtime's default) 4.6, 10 and 12 times as long as with 2000, beside none, one and
    two more busy processes; with 200 spins 0.7, 0.8 and 0.5 times, with none at all 0.8, 0.6 and
    0.5 times. The runtime reads the setting as it is loaded, so this has to run before torch is
    imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
