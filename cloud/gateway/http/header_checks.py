"""Checks the Host and Origin headers: by which names callers address the worker, and which web pages may call."""

import ipaddress
import re
from collections.abc import Sequence

from starlette.responses import JSONResponse

from cloud.gateway.common.errors import ErrorCode
from cloud.gateway.http.middleware import App, Receive, Scope, Send

ANY = "*"  # Allows all origins.

_SHOWN = 80  # Characters of a rejected name or origin in the error message.
_VERSIONS = ("1.0", "1.1")
_HEALTH_PATH = "/healthz"
# RFC 9110, 7.2 and RFC 3986, 3.2.2: a registered name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(r"(?P<name>[a-zA-Z0-9._~-]{1,255}|\[[0-9a-fA-F:.]{2,45}\])(:[0-9]{0,5})?")


class HostCheck:
    """ASGI middleware that rejects calls to a foreign host name before their bodies are read.

    This prevents DNS rebinding: an attacker's domain resolves to the worker's address, so that the browser treats the
    worker's responses as the attacker's own. The Host header of such a call still has the attacker's name. IP addresses
    and `localhost` cannot be rebound. `/healthz` accepts any name.
    """

    def __init__(self, app: App, allowed: Sequence[str]) -> None:
        """`allowed` has further names of the worker, without a port."""
        self._app = app
        self._allowed = frozenset({"localhost", *(name.lower() for name in allowed)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call (ASGI)."""
        error = self._error(scope)
        if error is None:
            await self._app(scope, receive, send)
            return
        code, text = error
        headers = {"connection": "close"}  # The peer may also frame its next request wrongly.
        await JSONResponse({"error": text}, code.http_status, headers)(scope, receive, send)

    def _error(self, scope: Scope) -> tuple[ErrorCode, str] | None:
        version, is_health = scope["http_version"], scope["path"] == _HEALTH_PATH
        if version not in _VERSIONS:
            return ErrorCode.INVALID, f"HTTP/{version} is not supported: send HTTP/1.1"
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not hosts and is_health and version == "1.0":  # Simple load balancers omit it.
            return None
        if len(hosts) != 1:
            return ErrorCode.INVALID, f"{len(hosts)} Host headers: send one"
        match = _HOST.fullmatch(hosts[0])
        if match is None:
            return ErrorCode.INVALID, f"Host {hosts[0][:_SHOWN]!r} cannot be read: send HOST or HOST:PORT"
        name = match["name"].lower()
        if is_health or name in self._allowed or _is_address(name.strip("[]")):
            return None
        return ErrorCode.FORBIDDEN, (
            f"{name[:_SHOWN]!r} is not a name of this worker: call its IP address, or start it with "
            f"--allowed-host {name[:_SHOWN]}"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
