"""Schedulers reached over TCP: addresses and the certificates that protect them.

Beyond this machine both ends must prove who they are (mutual TLS): whoever can attach decides how
fast an executor runs, and whoever can be attached to learns what it serves.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["TcpAddress", "TlsFiles", "is_local_peer", "tls_files"]

_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """host: a name or an IP address without brackets. port: 0 to 65535."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, min_port: int = 1) -> Self:
        """Read "host:port" or "[IPv6]:port"; raises ValueError telling what is accepted."""
        host, colon, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if is_bracketed else host
        is_host = bool(host) and not set(host) & set("[]/ ") and (is_bracketed or ":" not in host)
        is_port = port.isascii() and port.isdecimal() and min_port <= int(port) <= _MAX_PORT
        if not (colon and is_host and is_port):
            raise ValueError(
                f"{text!r} is no address; accepted: host:port or [IPv6]:port, port {min_port} to"
                f" {_MAX_PORT}"
            )
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it can only be reached from this machine. Names other than localhost cannot."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_local_peer(peer: str) -> bool:
    """Whether gRPC's name of a peer, such as ipv4:10.0.0.1:4242, is of this machine."""
    kind, _, address = peer.partition(":")
    if kind == "unix":
        return True
    host = address.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")
    try:
        return kind in {"ipv4", "ipv6"} and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one end. ca: who signs the other end's certificate."""

    ca: Path
    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise ValueError naming the file that is missing or is not what it should be."""
        for what, path in (("CA", self.ca), ("certificate", self.certificate), ("key", self.key)):
            if not path.is_file():
                raise ValueError(f"the {what} file {str(path)!r} does not exist")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"the CA file {str(self.ca)!r} is unusable: {error}") from None
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the certificate {str(self.certificate)!r} and the key {str(self.key)!r} are"
                f" unusable together: {error}"
            ) from None

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Contents of CA, certificate and key as they are now; raises OSError."""
        return self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes()


def tls_files(
    *, ca: Path | None, certificate: Path | None, key: Path | None, options: tuple[str, str, str]
) -> TlsFiles | None:
    """The files of three options that belong together, checked; None where none is given.

    options: the names of the three. Raises ValueError naming what is missing or unusable.
    """
    given = dict(zip(options, (ca, certificate, key), strict=True))
    missing = [name for name, path in given.items() if path is None]
    if ca is None or certificate is None or key is None:
        if len(missing) < len(options):
            raise ValueError(f"{', '.join(missing)} missing: {', '.join(options)} go together")
        return None
    files = TlsFiles(ca, certificate, key)
    files.check()
    return files


def _no_password() -> str:
    raise ValueError("the key is encrypted; accepted: a key without a passphrase")
