"""Where commands print for people."""

from __future__ import annotations

from rich.console import Console

__all__ = ["to_stdout"]

_PIPE_COLUMNS = 1000


def to_stdout() -> Console:
    """Colours and control characters on a terminal only; NO_COLOR turns colours off there, too.

    What goes into a pipe is not folded, whatever COLUMNS says: programs read it line by line. Names
    and errors of other processes are shown as they are: nothing in a text is markup.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    return console
