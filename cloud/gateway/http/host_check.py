"""The Host header: by which names HTTP callers may address the worker."""

import ipaddress
import re
from collections.abc import Sequence

from starlette.responses import JSONResponse

from cloud.gateway.common.errors import Kind
from cloud.gateway.http.middleware import App, Receive, Scope, Send

_SHOWN = 80  # Characters of a refused name.
_VERSIONS = ("1.0", "1.1")
_PROBE = "/healthz"
# RFC 9110, 7.2 and RFC 3986, 3.2.2: a registered name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(r"(?P<name>[a-zA-Z0-9._~-]{1,255}|\[[0-9a-fA-F:.]{2,45}\])(:[0-9]{0,5})?")


class Hosts:
    """Refuses calls to a name that is not the worker's, before they are read.

    A web page's own server name can be made to mean the worker's address (DNS rebinding); the browser then takes the
    worker's answers for the page's own. Such a call still has that name in its Host header. IP addresses and
    `localhost` cannot be taken over so. `/healthz` answers under any name.
    """

    def __init__(self, app: App, allowed: Sequence[str]) -> None:
        """`allowed`: further names of the worker, without a port."""
        self._app = app
        self._allowed = frozenset({"localhost", *(name.lower() for name in allowed)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, as ASGI has it."""
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        kind, text = refusal
        headers = {"connection": "close"}  # What sends such a head cannot be trusted to frame the next one.
        await JSONResponse({"error": text}, kind.http_status, headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[Kind, str] | None:
        version, is_probe = scope["http_version"], scope["path"] == _PROBE
        if version not in _VERSIONS:
            return Kind.INVALID, f"HTTP/{version} is not spoken here: send HTTP/1.1"
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not hosts and is_probe and version == "1.0":  # Simple balancers ask so.
            return None
        if len(hosts) != 1:
            return Kind.INVALID, f"{len(hosts)} Host headers came: send one"
        found = _HOST.fullmatch(hosts[0])
        if found is None:
            return Kind.INVALID, f"Host {hosts[0][:_SHOWN]!r} cannot be read: send HOST or HOST:PORT"
        name = found["name"].lower()
        if is_probe or name in self._allowed or _is_address(name.strip("[]")):
            return None
        return Kind.FORBIDDEN, (
            f"{name[:_SHOWN]!r} is not a name of this worker: call it by its IP address, or start it with "
            f"--allowed-host {name[:_SHOWN]}"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
