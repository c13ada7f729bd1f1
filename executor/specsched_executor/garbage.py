"""Pauses of Python's garbage collector, kept out of serving."""

from __future__ import annotations

import gc

__all__ = ["keep_what_is_there"]


def keep_what_is_there() -> None:
    """Take all objects that there are out of later collections; to be called once, at the end of a
    start.

    A full collection goes through every object. torch and its libraries make some 250,000, which
    takes a tenth of a second and more, in the middle of a step; those that serving makes are few.
    """
    gc.collect()
    gc.freeze()
