"""Values of protobuf enums in words."""

from __future__ import annotations

import re

from google.protobuf.descriptor import EnumDescriptor

__all__ = ["enum_word"]


def enum_word(enum: EnumDescriptor, value: int) -> str:
    """The value's name without the enum's, in lower case: LANE_ROLE_ACTIVE is "active".

    "unknown 9" for a value that a peer of another version has.
    """
    known = enum.values_by_number.get(value)
    if known is None:
        return f"unknown {value}"
    prefix = re.sub("(?<=[a-z])(?=[A-Z])", "_", enum.name).upper()
    return str(known.name).removeprefix(f"{prefix}_").lower()
