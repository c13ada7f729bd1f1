"""A picture that a command draws into a file. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from .exit_codes import ExitCode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PICTURE_FILE",
    "MissingMatplotlibError",
    "PictureError",
    "check_picture",
    "require_matplotlib",
    "save_picture",
]

_SUFFIXES: Final = (".png", ".svg", ".pdf")
_ACCEPTED: Final = f"a file that ends in {', '.join(_SUFFIXES)}"

PICTURE_FILE: Final = f"{', '.join(_SUFFIXES)}; replaced if it is there; needs matplotlib"
"""For the help of an option that names such a file."""


class PictureError(ValueError):
    """A picture that cannot be drawn; the message names the option, the file and what is wrong."""

    exit_code: ClassVar[ExitCode] = ExitCode.BAD_INPUT
    """Of a command that ends for it."""


class MissingMatplotlibError(PictureError):
    """Nothing can be drawn here; the message says what to install."""

    exit_code: ClassVar[ExitCode] = ExitCode.MISSING_PACKAGE


def require_matplotlib(option: str) -> None:
    """Raise MissingMatplotlibError where it is not installed. option: what asks for it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingMatplotlibError(
            f"{option} needs matplotlib, which is not installed: pip install 'specsched[plot]'"
        )


def check_picture(option: str, path: Path) -> None:
    """Raise PictureError where no picture can come to be at `path`; for before the work it shows.

    A folder and a name without a known ending are refused: matplotlib would write beside them.
    """
    require_matplotlib(option)
    if path.is_dir():
        raise PictureError(f"{option} {path}: is a folder; accepted: {_ACCEPTED}")
    if path.suffix.lower() not in _SUFFIXES:
        raise PictureError(f"{option} {path}: of no known format; accepted: {_ACCEPTED}")
    if not path.parent.is_dir():
        raise PictureError(f"{option} {path}: {path.parent} is no folder")


def save_picture(option: str, figure: Figure, path: Path) -> None:
    """Write a figure to a file, in place of the one that is there. Raises PictureError."""
    check_picture(option, path)
    try:
        figure.savefig(path)
    except OSError as error:
        raise PictureError(f"{option} {path}: {error.strerror}") from error
