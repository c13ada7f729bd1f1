"""Arrays of a .npz file that somebody else may have written."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["read_arrays"]


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Those of the named arrays that the archive holds; no pickle is loaded.

    Raises OSError where the file cannot be read, ValueError saying what it is instead of an archive
    of plain arrays ("is a single array, ..."), without its path.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                with archive:
                    return {name: archive[name] for name in names if name in archive.files}
    except ValueError as error:  # numpy's words advise to load pickles
        raise ValueError("is no .npz archive of plain arrays") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ValueError(f"is no .npz archive of plain arrays: {error}") from error
    raise ValueError("is a single array, expected a .npz archive")
