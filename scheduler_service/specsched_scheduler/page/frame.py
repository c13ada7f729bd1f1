"""What a listener of the page is sent: everything at first, then what changed since. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Frame", "changes", "event"]

Payload = dict[str, Any]
"""As `payload` makes it, plain values only."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One look at the scheduler, ready to be sent.

    whole: an event with all of it; change: an event for those who have the frame before, None where
    there is no such frame or too much is different.
    """

    number: int
    payload: Payload
    whole: bytes
    change: bytes | None

    @classmethod
    def after(cls, before: Frame | None, number: int, payload: Payload) -> Frame:
        """The frame of `payload`; before: the last one, None where nobody has it."""
        change = None if before is None else changes(before.payload, payload)
        return cls(
            number,
            payload,
            event("whole", payload, number),
            None if change is None else event("change", change, number),
        )


def event(name: str, data: object, number: int | None = None) -> bytes:
    """One server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    identity = "" if number is None else f"id: {number}\n"
    return f"event: {name}\n{identity}data: {json.dumps(data, allow_nan=False)}\n\n".encode()


def changes(before: Payload, after: Payload) -> Payload | None:
    """`after` with only those seconds and batch sizes that are new or different.

    None where an executor came or went in between: histories would be mixed up.
    """
    if _attached(before) != _attached(after):
        return None
    pairs = zip(before["executors"], after["executors"], strict=True)
    return after | {"executors": [_executor_changes(old, new) for old, new in pairs]}


def _attached(payload: Payload) -> tuple[int, list[tuple[int, str]]]:
    """num_attached tells an executor that came back from one that stayed."""
    ids = [(each["slot"], each["boot_id"]) for each in payload["executors"]]
    return payload["num_attached"], ids


def _executor_changes(before: Payload, after: Payload) -> Payload:
    old, new = before["decisions"], after["decisions"]
    decisions = new | {
        "seconds": _different(old["seconds"], new["seconds"], key="time_s"),
        "sizes": _different(old["sizes"], new["sizes"], key="num_requests"),
    }
    return after | {"decisions": decisions}


def _different(before: list[Payload], after: list[Payload], *, key: str) -> list[Payload]:
    known = {each[key]: each for each in before}
    return [each for each in after if known.get(each[key]) != each]
