"""Stands in for a scheduler in a slot that is not used: answers its probes, does nothing.

Takes a scheduler's options, since of a live pod only the image changes, and reads --probe-address.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_OPTION = "--probe-address="


class Probes(BaseHTTPRequestHandler):
    """200 for a kubelet, an empty page of metrics for Prometheus."""

    timeout = 10.0  # of a connection that says nothing

    def do_GET(self) -> None:
        bodies = {"/livez": b"idle\n", "/readyz": b"idle\n", "/metrics": b""}
        body = bodies.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Probes come for ever; say nothing."""


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM, which as process 1 has no handler of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    (address,) = [each.removeprefix(_OPTION) for each in arguments if each.startswith(_OPTION)]
    host, _, port = address.rpartition(":")
    ThreadingHTTPServer((host, int(port)), Probes).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
