"""Every fixed draft length, no speculation and the schedule, at every load, until it is precise.

Repeats of all settings are interleaved in one server session and kept as they finish, so that a
sweep that was interrupted goes on where it was.
"""

from __future__ import annotations
