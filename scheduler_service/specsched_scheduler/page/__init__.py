"""The live page of a scheduler, fed by server-sent events from the snapshot that metrics are of.

`Page` has its routes. Looks are taken in a thread, once a second for all who watch; decisions never
wait for them. static/ holds plain ES modules and the one library that they draw with.
"""

from __future__ import annotations

from .page import Page
from .promotion import Promotions
from .verdict import Phase

__all__ = ["Page", "Phase", "Promotions"]
