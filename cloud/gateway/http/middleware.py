"""ASGI middleware that every HTTP call passes, whatever its route."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from cloud.gateway.limits import ActiveCall, CallLimits
from cloud.serving.errors import ApiError, ErrorCode, InvalidError

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


ANY = "*"  # Allows all origins.

_SHOWN = 80  # Characters of a rejected name or origin in the error message.
_VERSIONS = ("1.0", "1.1")
_HEALTH_PATH = "/healthz"
# RFC 9110, 7.2 and RFC 3986, 3.2.2: a registered name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(r"(?P<name>[a-zA-Z0-9._~-]{1,255}|\[[0-9a-fA-F:.]{2,45}\])(:[0-9]{0,5})?")


class HeaderChecks:
    """ASGI middleware that rejects a call to a foreign host name, or from a foreign web page, before its body is read.

    An attacker's domain may resolve to the worker's address (DNS rebinding), so that the browser treats the worker's
    responses as the attacker's own; the Host header still has the attacker's name. IP addresses and `localhost` cannot
    be rebound. `/healthz` accepts any name.

    CORS alone hides the response from a foreign page, but the call is processed: a form on any page could submit an
    image or unload a model.
    """

    def __init__(self, app: App, allowed_hosts: Sequence[str], allowed_origins: Sequence[str]) -> None:
        """`allowed_hosts` are further names of the worker, without a port.

        `allowed_origins` are written as by browsers, `https://HOST` or `http://HOST:PORT`, or `ANY`.
        """
        self._app = app
        self._hosts = frozenset({"localhost", *(name.lower() for name in allowed_hosts)})
        self._origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call (ASGI)."""
        try:
            self._check_origin(scope, self._check_host(scope))
        except ApiError as error:
            headers = {"connection": "close"}  # The peer may also frame its next request wrongly.
            response = JSONResponse({"error": str(error)}, error.code.http_status, headers)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, scope: Scope) -> str | None:
        """Returns the Host header in lower case."""
        version, is_health = scope["http_version"], scope["path"] == _HEALTH_PATH
        if version not in _VERSIONS:
            raise InvalidError(f"HTTP/{version} is not supported: send HTTP/1.1")
        hosts = _values(scope, b"host")
        if not hosts and is_health and version == "1.0":  # Simple load balancers omit it.
            return None
        if len(hosts) != 1:
            raise InvalidError(f"{len(hosts)} Host headers: send one")
        match = _HOST.fullmatch(hosts[0])
        if match is None:
            raise InvalidError(f"Host {hosts[0][:_SHOWN]!r} cannot be read: send HOST or HOST:PORT")
        name = match["name"].lower()
        if is_health or name in self._hosts or _is_address(name.strip("[]")):
            return hosts[0].lower()
        raise ApiError(
            ErrorCode.FORBIDDEN,
            f"{name[:_SHOWN]!r} is not a name of this worker: call its IP address, or start it with "
            f"--allowed-host {name[:_SHOWN]}",
        )

    def _check_origin(self, scope: Scope, host: str | None) -> None:
        """Accepts listed origins and the worker's own, ignoring the scheme of the latter: a proxy may add TLS."""
        for origin in _values(scope, b"origin"):
            if not {ANY, origin} & self._origins and origin.partition("://")[2].lower() != host:
                raise ApiError(
                    ErrorCode.FORBIDDEN,
                    f"web pages of {origin[:_SHOWN]!r} may not call this worker: start it with --origin to allow them",
                )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]


_DRAIN_S = 1.0  # Time for which an unread body is discarded, so that its sender can receive the error response.


class CallMiddleware:
    """Counts calls, reports unexpected exceptions, and closes the connection if a body was not read completely."""

    def __init__(
        self, app: App, limits: CallLimits, on_error: Callable[[Exception], None], count: Callable[[int], None]
    ) -> None:
        """`on_error` receives unexpected exceptions; their calls have been answered with 500.

        `count` is called with the status of each response.
        """
        self._app = app
        self._count = count
        self._limits = limits
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call (ASGI)."""
        assert scope["type"] == "http"
        active = ActiveCall(self._limits)
        scope.setdefault("state", {})["active_call"] = active
        headers = dict(scope["headers"])
        is_complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"

        async def receive_tracked() -> Event:
            nonlocal is_complete
            event = await receive()
            is_complete = event["type"] != "http.request" or not event.get("more_body", False)
            return event

        async def send_counted(event: Event) -> None:
            """If the response is ready before the whole body, discards the body before the connection ends.

            If the connection were closed with unread bytes, the kernel would discard the response as well.
            """
            if event["type"] == "http.response.start":
                self._count(event["status"])
                if not is_complete:
                    event["headers"] = [*event.get("headers", ()), (b"connection", b"close")]
            elif event["type"] == "http.response.body" and not (is_complete or event.get("more_body", False)):
                await send({**event, "more_body": True})
                with anyio.move_on_after(_DRAIN_S):
                    while not is_complete:
                        await receive_tracked()
                event = {"type": "http.response.body"}
            await send(event)

        try:
            await self._app(scope, receive_tracked, send_counted)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001  Only this call fails.
            self._on_error(error)
        finally:
            active.end()
