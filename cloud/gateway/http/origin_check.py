"""Checks the Origin header: web pages of other servers may call only if they are allowed."""

from collections.abc import Sequence

from starlette.responses import JSONResponse

from cloud.gateway.common.errors import ErrorCode
from cloud.gateway.http.middleware import App, Receive, Scope, Send

ANY = "*"  # Allows all origins.

_SHOWN = 80  # Characters of a rejected origin in the error message.


class OriginCheck:
    """ASGI middleware that rejects a foreign web page's call before its body is read.

    CORS alone hides the response from such a page, but the call is processed: a form on any page could submit an image
    or unload a model.
    """

    def __init__(self, app: App, allowed: Sequence[str]) -> None:
        """`allowed` has origins as browsers write them, `https://HOST` or `http://HOST:PORT`, or `ANY`."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call (ASGI), whose Host header has been checked."""
        hosts = [host.lower() for host in _values(scope, b"host")]
        foreign = next((each for each in _values(scope, b"origin") if not self._is_allowed(each, hosts)), None)
        if foreign is None:
            await self._app(scope, receive, send)
            return
        text = f"web pages of {foreign[:_SHOWN]!r} may not call this worker: start it with --origin to allow them"
        await JSONResponse({"error": text}, ErrorCode.FORBIDDEN.http_status)(scope, receive, send)

    def _is_allowed(self, origin: str, hosts: Sequence[str]) -> bool:
        """Accepts listed origins and the worker's own, ignoring the scheme of the latter: a proxy may add TLS."""
        if ANY in self._allowed or origin in self._allowed:
            return True
        return origin.partition("://")[2].lower() in hosts


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]
