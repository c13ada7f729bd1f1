"""What a policy raised, in one line."""

from __future__ import annotations

import traceback

__all__ = ["raised_by"]

_MAX_CHARACTERS = 200


def raised_by(error: Exception, module: str) -> str:
    """`TYPE: MESSAGE (FILE:LINE)`, the innermost place in the package of the policy's `module`.

    No place where nothing of that package was running.
    """
    message = " ".join(str(error).split())
    if len(message) > _MAX_CHARACTERS:
        message = f"{message[:_MAX_CHARACTERS]}..."
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _place(error, module.partition(".")[0])
    return f"{told} ({place})" if place else told


def _place(error: Exception, package: str) -> str:
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    return places[-1] if places else ""
