"""Whether a request comes from the page itself, and not from another site in the same browser.

The HTTP port turns away whoever calls it by a name that is not loopback's; here is the rest.
"""

from __future__ import annotations

from aiohttp import web

__all__ = ["PAGE_HEADER", "check_reader", "check_writer"]

PAGE_HEADER = "X-Specsched-Page"
"""On each POST; a browser lets no other site send it without asking, and nobody says yes."""


def check_reader(request: web.Request) -> None:
    """Raise HTTPForbidden where another site asks: it could not read, but take up places."""
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in {"same-origin", "none"}:
        raise web.HTTPForbidden(text=f"Sec-Fetch-Site {site}: accepted: same-origin\n")


def check_writer(request: web.Request) -> None:
    """Raise HTTPForbidden for all but the page as this process serves it."""
    check_reader(request)
    origin, own = request.headers.get("Origin", ""), f"http://{request.host}"
    if origin != own:
        raise web.HTTPForbidden(text=f"Origin {origin!r}: accepted: {own}\n")
    if PAGE_HEADER not in request.headers:
        raise web.HTTPForbidden(text=f"without {PAGE_HEADER}\n")
