"""Compilation of the CPU kernels, kept on disk under a key that covers all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config as _config

config: Any = _config
"""numba's settings, whose attributes are made at run time."""


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """njit without the GIL, cached on disk.

    numba notices a change of the file that a function is in, not of the files that its callees are
    in: after an upgrade, code compiled for the old `simd` would go on being run, with another row
    count than its caller pads to. So the cache lies in a folder named for the content of the
    package, beside the sources, or below NUMBA_CACHE_DIR where that is set.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        configured = config.CACHE_DIR
        config.CACHE_DIR = str(_folder(configured))
        try:
            return njit(nogil=True, cache=True, **options)(function)
        finally:
            config.CACHE_DIR = configured

    return decorate


@cache
def _folder(configured: str) -> Path:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(here.glob("*.py")):
        digest.update(source.read_bytes())
    parent = Path(configured) if configured else here / "__pycache__"
    return parent / f"kernels-{digest.hexdigest()[:16]}"
