"""Certificate authorities and certificates made for one test."""

from __future__ import annotations

from pathlib import Path

import trustme
from specsched_protocol.tcp import TlsFiles

NAMES = ("localhost", "127.0.0.1")


class Authority:
    """Signs certificates; its files lie in `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self._directory = directory
        self.path = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str, *identities: str, trusting: Authority | None = None) -> TlsFiles:
        """Files of one end, for `identities`; it trusts what `trusting`, else this one, signed."""
        issued = self._ca.issue_cert(*(identities or NAMES))
        certificate = self._directory / f"{name}.pem"
        key = self._directory / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return TlsFiles((trusting or self).path, certificate, key)
