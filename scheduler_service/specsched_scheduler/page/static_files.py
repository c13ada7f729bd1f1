"""The files of the page, read once: what is not among them cannot be asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from aiohttp import web

__all__ = ["SECURITY_HEADERS", "static_routes"]

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of everything that the page is made of: nothing from elsewhere, nothing inline, in no frame."""


def static_routes() -> list[web.RouteDef]:
    """One for each file; index.html is `/`."""
    files = (path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _TYPES)
    return [_route(path) for path in files]


def _route(path: Path) -> web.RouteDef:
    name = path.relative_to(_FOLDER).as_posix()
    body, content_type = path.read_bytes(), _TYPES[path.suffix]
    tag = hashlib.sha256(body).hexdigest()[:32]

    async def serve(request: web.Request) -> web.StreamResponse:
        headers = SECURITY_HEADERS | {"Cache-Control": "no-cache", "ETag": f'"{tag}"'}
        if any(each.value in {tag, "*"} for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)

    return web.get("/" if name == "index.html" else f"/page/{name}", serve)
