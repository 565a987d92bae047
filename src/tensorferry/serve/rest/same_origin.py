"""What a page of another site may not make a browser send: anything that changes the server, or makes it work.

Browsers say where a request comes from (`Origin`, `Sec-Fetch-Site`); other clients send neither. A page can also post without
asking first, but not as JSON.
"""

from tensorferry.serve.core.faults import Forbidden, InvalidRequest
from tensorferry.serve.core.hosts import AllowedHosts
from tensorferry.serve.rest.exchange import HttpRequest

_BROWSERS_OWN = frozenset(("same-origin", "none"))  # from a page of this server, or typed by the user
_FORM = "application/x-www-form-urlencoded"  # what curl and other tools say of every body


def check_origin(request: HttpRequest, hosts: AllowedHosts) -> None:
    """Raise Forbidden for what a page of another site sends; those of a name that was given as the server's are its own."""
    headers = request.headers
    if b"origin" in headers or b"sec-fetch-site" in headers:
        origin = request.header(b"origin").lower().partition("://")[2]
        is_other = b"origin" in headers and origin != request.header(b"host").lower() and not hosts.lists(origin)
        if is_other or request.header(b"sec-fetch-site") not in ("", *_BROWSERS_OWN):
            raise Forbidden("a page of another site may not use this server")


def check_control(request: HttpRequest) -> None:
    """Raise InvalidRequest for a call that changes the server and is not sent as JSON."""
    kind = request.header(b"content-type").partition(";")[0].strip().lower()
    is_browser = any(name in request.headers for name in (b"origin", b"sec-fetch-site", b"referer"))
    if kind not in ("", "application/json", "application/octet-stream") and (kind != _FORM or is_browser):
        raise InvalidRequest(f"a call that changes the server must have the content type application/json, received {kind!r}")
