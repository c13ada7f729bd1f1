"""How many threads a kernel on the CPU gets.

The threads are numba's, as many as torch uses. Which thread does what never changes a bit of a
result.
"""

from __future__ import annotations

from typing import Final

import numba
import torch

_MIN_PARALLEL_WORK: Final = 1 << 17


def num_workers(work: int) -> int:
    """Threads for this many multiplications; 1 where waking others takes longer than the work."""
    if work < _MIN_PARALLEL_WORK:
        return 1
    return min(torch.get_num_threads(), int(numba.get_num_threads()))
