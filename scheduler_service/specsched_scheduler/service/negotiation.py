"""What an executor and this scheduler must agree on before they share memory."""

from __future__ import annotations

from itertools import pairwise

from specsched_protocol.shm import BOOT_ID_BYTES
from specsched_protocol.shm.layout import MAX_DRAFT_TOKENS, MAX_REQUESTS
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.versions import VersionRange

from .errors import InvalidMessageError, PeerRefusedError

__all__ = ["check_hello", "negotiate_protocol"]

_MAX_EPOCH = (1 << 63) - 1
"""A word of a lane."""


def negotiate_protocol(ours: VersionRange, theirs: VersionRange) -> int:
    """Return the highest version both sides speak.

    Raises InvalidMessageError for an empty range, PeerRefusedError naming both ranges where they
    share no version.
    """
    if not 1 <= theirs.min_version <= theirs.max_version:
        raise InvalidMessageError(
            f"hello.protocol = {theirs}: accepted are ranges with 1 <= min_version <= max_version"
        )
    version = min(ours.max_version, theirs.max_version)
    if version < max(ours.min_version, theirs.min_version):
        raise PeerRefusedError(
            f"no common protocol version: the executor speaks {theirs}, this scheduler {ours}"
        )
    return version


def check_hello(hello: pb.Hello) -> None:
    """Raise InvalidMessageError naming the first field of `hello` that is out of range."""
    if len(hello.boot_id) != BOOT_ID_BYTES:
        raise InvalidMessageError(
            f"hello.boot_id has {len(hello.boot_id)} bytes, accepted: {BOOT_ID_BYTES}"
        )
    _check_range("hello.model.max_requests", hello.model.max_requests, MAX_REQUESTS)
    _check_range("hello.model.max_draft_tokens", hello.model.max_draft_tokens, MAX_DRAFT_TOKENS)
    if hello.epoch > _MAX_EPOCH:
        raise InvalidMessageError(f"hello.epoch = {hello.epoch}, accepted: 0 to {_MAX_EPOCH}")
    sizes = list(hello.capture_sizes)
    if any(low >= high for low, high in pairwise(sizes)):
        raise InvalidMessageError(f"hello.capture_sizes = {sizes}: accepted: strictly rising sizes")


def _check_range(field: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise InvalidMessageError(f"{field} = {value}, accepted: 1 to {maximum}")
