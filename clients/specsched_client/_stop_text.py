"""Stop strings in streamed text: shown text is never taken back."""

from __future__ import annotations

from collections.abc import Sequence


class StopTrimmer:
    """Holds back text that may be the beginning of a stop string, and cuts the one that matched.

    The engine decides what stops an output (it has the whole text at hand); this only keeps the
    string that stopped it out of sight. first_counts: a stop string ends the output wherever it
    first appears; else (min_tokens) earlier ones were ignored and only the last one did.
    """

    def __init__(self, stop: Sequence[str], *, first_counts: bool) -> None:
        self._stop = tuple(stop)
        self._first_counts = first_counts
        self._held = ""

    def push(self, text: str) -> str:
        """Text that can be shown."""
        shown = ""
        if text and any(each in self._held for each in self._stop):
            # Text goes on behind a stop string: it was ignored.
            shown, self._held = self._held, ""
        seen = self._held + text
        begins = (_possible_begin(seen, each) for each in self._stop)
        first = min((begin for begin in begins if begin is not None), default=len(seen))
        self._held = seen[first:]
        return shown + seen[:first]

    def finish(self, text: str, matched: str | None) -> str:
        """The rest of the text at the end of the output, without the string that stopped it."""
        seen, self._held = self._held + text, ""
        if matched is None or matched not in self._stop or matched not in seen:
            return seen
        return seen[: seen.find(matched) if self._first_counts else seen.rfind(matched)]


def _possible_begin(text: str, stop: str) -> int | None:
    """Where `stop` begins in `text`, or where its beginning ends the text; None if nowhere."""
    whole = text.find(stop)
    if whole >= 0:
        return whole
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((len(text) - size for size in sizes if text.endswith(stop[:size])), None)
