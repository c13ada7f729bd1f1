"""Run the rest of the command line under a seccomp filter that refuses one system call.

    python -m tests.clients.doctor.refused_calls memfd_create ARGUMENTS OF SPECSCHED

What containers do by their seccomp profiles: `memfd_create` is refused as not permitted; with
`future_write` the seal of that name is refused as unknown, as kernels before 5.1 do.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

_NUMBERS = {
    "x86_64": {"memfd_create": 319, "fcntl": 72},
    "aarch64": {"memfd_create": 279, "fcntl": 25},
}
_LOAD, _IF_EQUAL, _IF_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 24, 32
_F_ADD_SEALS, _FUTURE_WRITE = 1033, 0x10
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def filter_of(name: str) -> list[tuple[int, int, int, int]]:
    """Instructions (code, jump if true, jump if false, operand); the last one allows."""
    numbers = _NUMBERS[platform.machine()]
    if name == "memfd_create":
        return [
            (_LOAD, 0, 0, _NUMBER),
            (_IF_EQUAL, 0, 1, numbers["memfd_create"]),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    return [
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 5, numbers["fcntl"]),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_IF_EQUAL, 0, 3, _F_ADD_SEALS),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_IF_BITS, 0, 1, _FUTURE_WRITE),
        (_RETURN, 0, 0, _ERRNO | errno.EINVAL),
        (_RETURN, 0, 0, _ALLOW),
    ]


def refuse(name: str) -> None:
    """Put the filter on this process, for good."""
    code = filter_of(name)
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    program = _Program(len(code), packed)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse(sys.argv[1])
    sys.argv = ["specsched", *sys.argv[2:]]
    from specsched_client.cli import main

    main()
