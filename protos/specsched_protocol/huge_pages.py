"""Whether this system lets a program have huge pages for what it allocates.

Linux gives transparent huge pages to all, to those who ask for them, or to nobody; of the C
libraries glibc can be told to ask (`glibc.malloc.hugetlb`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["MODE_FILE", "allocator_can_be_told", "huge_page_mode"]

MODE_FILE: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FIRST_GLIBC: Final = (2, 35)


def huge_page_mode(file: Path = MODE_FILE) -> str | None:
    """`always`, `madvise` (who asks) or `never`; None where the kernel does not say."""
    try:
        _, _, rest = file.read_text(encoding="ascii").partition("[")
    except (OSError, ValueError):
        return None
    return rest.partition("]")[0] or None


def allocator_can_be_told() -> bool:
    """Whether the C library of this process takes settings for huge pages."""
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return library == "glibc" and tuple(map(int, version.split("."))) >= _FIRST_GLIBC
    except (OSError, ValueError):  # another C library
        return False
