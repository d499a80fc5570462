"""Who may see the pages: the `Host` and the origin of a request, its token or cookie; and headers of every answer.

Invariant: a request that is refused reaches no page, and the answer to it says nothing about the logs.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

__all__ = ["CONTENT_SECURITY_POLICY", "Access", "Guarded"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_EVERY_ANSWER = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
_HEADER_NAMES = frozenset(name for name, _ in _EVERY_ANSWER)
_METHODS = ("GET", "HEAD")
_OWN_SITES = ("same-origin", "none")


class Access(NamedTuple):
    """What a request must show. Immutable, so threads may share it."""

    token: str
    """The secret in the address that was printed, and in the cookie that replaces it."""

    hosts: frozenset[str]
    """The allowed values of `Host`, each with the port."""

    any_address: bool
    """Whether `Host` may also be an address in numbers, because the server listens on all addresses of the machine. A
    foreign page that has its own name lead to this machine sends that name, not a number.
    """

    cookie: str
    """The cookie's name. It contains the port, because a browser sends a cookie to all ports of a host."""

    def is_host(self, host: str) -> bool:
        """Return whether a value of `Host` is allowed."""
        if host.lower() in self.hosts:
            return True
        address, _, port = host.rpartition(":")
        return self.any_address and port.isdecimal() and _is_address(address.removeprefix("[").removesuffix("]"))


class Guarded:
    """An ASGI application that answers requests which show the token, and refuses all others. Thread-safe."""

    def __init__(self, app: App, access: Access, refusal_page: Callable[[int, str], bytes]) -> None:
        """Guard `app`; `refusal_page(status, reason)` returns the HTML of a refusal."""
        self._app = app
        self._access = access
        self._refusal_page = refusal_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; connections other than HTTP are closed."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        refused = self._refusal(scope, headers)
        if refused is not None:
            status, reason = refused
            await _answer(send, status, self._refusal_page(status, reason), [], scope["method"])
            return
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in asked if name == "token"]
        if tokens:
            if all(map(self._is_token, tokens)):
                await self._let_in(scope, send, [pair for pair in asked if pair[0] != "token"])
            else:
                await self._refuse_token(scope, send, "The token in the address is wrong.")
        elif any(map(self._is_token, _cookies(headers.get(b"cookie", []), self._access.cookie))):
            await self._answer_with_app(scope, receive, send)
        else:
            await self._refuse_token(scope, send, "The token is missing.")

    async def _answer_with_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer.

        What it raises is on the page that it has sent. uvicorn must not log it: it may contain text from a log.
        """
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in _HEADER_NAMES]
                message["headers"] = [*kept, *_EVERY_ANSWER]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            if not has_begun:
                page = self._refusal_page(500, "The page could not be made.")
                await _answer(send, 500, page, [], scope["method"])

    def _refusal(self, scope: Scope, headers: dict[bytes, list[str]]) -> tuple[int, str] | None:
        """Return why a request is refused whatever its token is, and the status; None if it is not."""
        if scope["method"] not in _METHODS:
            return 405, "The pages are read-only: only GET and HEAD are allowed."
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._access.is_host(hosts[0]):
            return 403, "The request names another host than the one that the pages are served on."
        origins = headers.get(b"origin", [])
        if origins and origins != [f"http://{hosts[0]}"]:
            return 403, "The request comes from another origin."
        if any(site not in _OWN_SITES for site in headers.get(b"sec-fetch-site", [])):
            return 403, "The request comes from another site. Paste the address that kstore ui printed instead."
        return None

    def _is_token(self, text: str) -> bool:
        given, known = text.encode("utf-8", "surrogateescape"), self._access.token.encode()
        return hmac.compare_digest(given, known)

    async def _let_in(self, scope: Scope, send: Send, asked: list[tuple[str, str]]) -> None:
        """Turn the token into a cookie, and lead to the same page without it."""
        path = "/" + scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace").lstrip("/\\")
        place = f"{path}?{urlencode(asked)}" if asked else path
        cookie = f"{self._access.cookie}={self._access.token}; HttpOnly; SameSite=Strict; Path=/"
        more = [(b"location", place.encode("ascii", "replace")), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, b"", more, scope["method"])

    async def _refuse_token(self, scope: Scope, send: Send, reason: str) -> None:
        page = self._refusal_page(403, f"{reason} Open the address that kstore ui printed.")
        await _answer(send, 403, page, [], scope["method"])


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _headers(scope: Scope) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value.decode("latin-1"))
    return found


def _cookies(lines: Iterable[str], name: str) -> list[str]:
    """Return the values of all cookies of this name."""
    pairs = (pair.strip().partition("=") for line in lines for pair in line.split(";"))
    return [value for key, _, value in pairs if key == name]


async def _answer(send: Send, status: int, body: bytes, more: list[tuple[bytes, bytes]], method: str) -> None:
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *more,
        *_EVERY_ANSWER,
    ]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
