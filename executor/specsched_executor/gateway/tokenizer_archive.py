"""The tokenizer as GetTokenizer streams it: a zip in chunks, its SHA-256 on the last one."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping

from smg_grpc_proto.generated import common_pb2

CHUNK_BYTES = 1024 * 1024

_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_archive(files: Mapping[str, bytes]) -> bytes:
    """Zip the files, flat and sorted; equal files give equal bytes, hence an equal fingerprint."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def to_chunks(archive: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Cut the archive into messages of at most CHUNK_BYTES."""
    digest = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), CHUNK_BYTES):
        is_last = start + CHUNK_BYTES >= len(archive)
        yield common_pb2.GetTokenizerChunk(
            data=archive[start : start + CHUNK_BYTES], sha256=digest if is_last else ""
        )
