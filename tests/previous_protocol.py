"""A peer that speaks the protocol before this one, from its frozen descriptors and layout.

Nothing of the present protocol package is used: messages are built from
fixtures/protocol_1/descriptors.binpb, memory is written by the offsets in layout.json and with
plain stores.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIXTURE = Path(__file__).parent / "fixtures" / "protocol_1"
LAYOUT: dict[str, Any] = json.loads((FIXTURE / "layout.json").read_text())
VERSION = 1
WORD_BYTES = 8
_FIELD_WORDS = LAYOUT["layout"]["HEADER_WORDS"]
_ATTACH = "/specsched.v1.SchedulerService/Attach"


def _pool() -> descriptor_pool.DescriptorPool:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        (FIXTURE / "descriptors.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:
        pool.Add(each)
    return pool


POOL = _pool()


def message(name: str) -> Any:
    """The class of a message of the previous protocol."""
    found = POOL.FindMessageTypeByName(f"specsched.v1.{name}")
    return message_factory.GetMessageClass(found)


def attach_call(channel: grpc.aio.Channel) -> Any:
    """The previous executor's Attach stream."""
    return channel.stream_stream(
        _ATTACH,
        request_serializer=message("AttachRequest").SerializeToString,
        response_deserializer=message("AttachResponse").FromString,
    )()


def hello(boot_id: bytes, **fields: Any) -> Any:
    """A Hello of the previous protocol, which knows no features."""
    assert "features" not in message("Hello").DESCRIPTOR.fields_by_name
    return message("Hello")(
        protocol=message("ProtocolRange")(min_version=VERSION, max_version=VERSION),
        boot_id=boot_id,
        executor_name="previous",
        model=message("ModelFacts")(name="tiny", max_requests=3, max_draft_tokens=4),
        **fields,
    )


class PreviousRegions:
    """The previous executor's memory, for 3 requests of 4 drafts, and its hand-over."""

    def __init__(self, directory: Path, boot_id: bytes, *, lane: int, epoch: int) -> None:
        self.layout = LAYOUT["executor_layout"]["3x4x4"]
        num_words = self.layout["num_words"]
        fields = _common(1, num_words, boot_id) + list(self.layout.values())
        self.executor_fd, self.executor = _memory(num_words, fields)
        numbers = LAYOUT["layout"]
        fields = [lane, epoch, numbers["LANE_HEARTBEAT"], numbers["LANE_DECISION"]]
        words = numbers["LANE_WORDS"]
        self.lane_fd, self.lane = _memory(words, _common(2, words, boot_id) + fields)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.executor_fd, fcntl.F_ADD_SEALS, seals | 0x10)
        fcntl.fcntl(self.lane_fd, fcntl.F_ADD_SEALS, seals)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        self.nonce = os.urandom(32)
        self.path = directory / "previous.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen()

    def offer(self) -> Any:
        return message("SharedMemoryOffer")(
            handoff_socket_path=str(self.path),
            nonce=self.nonce,
            abi_version=LAYOUT["abi_version"],
            executor_region_bytes=self.executor.size * WORD_BYTES,
            lane_region_bytes=self.lane.size * WORD_BYTES,
        )

    def hand_over(self) -> None:
        """Answer one scheduler."""
        connection, _ = self._listener.accept()
        with connection:
            asked = connection.recv(100)
            assert asked == struct.pack("<8sI32s", b"SPECHAND", LAYOUT["abi_version"], self.nonce)
            fds = [self.executor_fd, self.lane_fd, self.doorbell]
            socket.send_fds(connection, [struct.pack("<8sI116s", b"SPECHAND", 0, b"")], fds)

    def publish(self, step_id: int) -> None:
        """The plan request of a step that nobody takes part in."""
        publication = int(self.executor[self.layout["publication"]]) + 1
        base = self.layout["request"] + (publication % 2) * self.layout["request_stride"]
        names = LAYOUT["request_and_confidence_words"]
        self.executor[base] += 1
        payload = self.executor[base + 1 :]
        payload[names["PUBLICATION"]] = publication
        payload[names["STEP_ID"]] = step_id
        payload[names["SOURCE_STEP_ID"]] = step_id - 2
        payload[names["MAX_BUDGET"]] = 7
        self.executor[base] += 1
        self.executor[self.layout["publication"]] = publication
        os.eventfd_write(self.doorbell, 1)

    def decision(self, step_id: int) -> dict[str, int] | None:
        """The words of the scheduler's decision for a step, by name."""
        return read_decision(self.lane, step_id)

    def close(self) -> None:
        self._listener.close()
        for fd in (self.executor_fd, self.lane_fd, self.doorbell):
            os.close(fd)


def read_decision(lane: Any, step_id: int) -> dict[str, int] | None:
    numbers, names = LAYOUT["layout"], LAYOUT["decision_words"]
    for buffer in range(2):
        base = numbers["LANE_DECISION"] + buffer * numbers["LANE_DECISION_STRIDE"]
        words = lane[base + 1 :]
        if lane[base] > 0 and lane[base] % 2 == 0 and words[names["STEP_ID"]] == step_id:
            return {name: int(words[place]) for name, place in names.items()}
    return None


class PreviousScheduler:
    """The previous scheduler's end of the memory that an executor of today hands over."""

    def __init__(self, offer: Any) -> None:
        assert offer.abi_version == LAYOUT["abi_version"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(offer.handoff_socket_path)
            connection.send(struct.pack("<8sI32s", b"SPECHAND", offer.abi_version, offer.nonce))
            _, fds, _, _ = socket.recv_fds(connection, 200, 3)
        self._fds = fds
        self.executor = _mapped(fds[0], offer.executor_region_bytes, mmap.PROT_READ)
        self.lane = _mapped(fds[1], offer.lane_region_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        self._index = 0

    def request(self, layout: dict[str, int]) -> dict[str, int]:
        """The words of the newest plan request, by name."""
        publication = int(self.executor[layout["publication"]])
        base = layout["request"] + (publication % 2) * layout["request_stride"]
        names = LAYOUT["request_and_confidence_words"]
        fixed = LAYOUT["layout"]["REQUEST_FIXED_WORDS"]
        words = self.executor[base + 1 : base + 1 + fixed]
        return {name: int(words[at]) for name, at in names.items() if not name.startswith("ROWS")}

    def decide(self, **words: int) -> None:
        """Write a decision, the words by name."""
        numbers, names = LAYOUT["layout"], LAYOUT["decision_words"]
        base = numbers["LANE_DECISION"] + (self._index % 2) * numbers["LANE_DECISION_STRIDE"]
        self.lane[base] += 1
        for name, value in words.items():
            self.lane[base + 1 + names[name]] = value
        self.lane[base] += 1
        self._index += 1

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def _common(kind: int, num_words: int, boot_id: bytes) -> list[int]:
    halves = [int.from_bytes(boot_id[i : i + 8], "little", signed=True) for i in (0, 8)]
    magic = LAYOUT["layout"]["MAGIC"]
    sizes = [_FIELD_WORDS * WORD_BYTES, num_words * WORD_BYTES]
    return [magic, LAYOUT["abi_version"], kind, *sizes, *halves]


def _memory(num_words: int, fields: list[int]) -> tuple[int, Any]:
    fd = os.memfd_create("previous", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_words * WORD_BYTES)
    words = _mapped(fd, num_words * WORD_BYTES, mmap.PROT_READ | mmap.PROT_WRITE)
    words[: len(fields)] = fields
    return fd, words


def _mapped(fd: int, num_bytes: int, protection: int) -> Any:
    return np.frombuffer(mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, protection), dtype=np.int64)
