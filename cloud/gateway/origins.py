"""Origins: of which servers a web page must be that calls from a browser."""

import ipaddress
import socket
from collections.abc import Sequence

from starlette.responses import JSONResponse

from cloud.gateway.http_guard import App, Receive, Scope, Send
from cloud.gateway.refusal import Kind

ANY = "*"  # In the place of an origin.

_SHOWN = 80  # Characters of a stranger's origin.
_OF_BROWSERS = b"sec-fetch-site"  # A header that every browser sends, and no page can leave out.


class Origins:
    """Turns a foreign page away before its call is read.

    That a browser keeps the answer from such a page (CORS) does not keep the call from being answered: a form of any page
    can post a picture, or unload a model. Nor does a page become the worker's own by calling it as the page's server is
    called: whoever has that name's record may have it mean the worker's address (DNS rebinding). A browser's calls have
    to name the worker by an address, or by the machine's own name.
    """

    def __init__(self, app: App, allowed: Sequence[str]) -> None:
        """`allowed`: as browsers write them, `https://HOST` or `http://HOST:PORT`, or `ANY`."""
        self._app = app
        self._allowed = frozenset(allowed)
        self._allowed_hosts = frozenset(map(_host, allowed))
        self._own_names = frozenset({"localhost", socket.gethostname().lower()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, as ASGI has it."""
        told = None if ANY in self._allowed else self._problem(scope)
        if told is None:
            await self._app(scope, receive, send)
            return
        await JSONResponse({"error": told}, Kind.FORBIDDEN.http_status)(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        """What is wrong with a browser's call; None with nothing, and of whoever is no browser."""
        origins, hosts = _all(scope, b"origin"), _all(scope, b"host")
        foreign = next((each for each in origins if not self._may(each, hosts)), None)
        if foreign is not None:
            return f"pages of {foreign[:_SHOWN]!r} may not call: only those of this worker, or of a server that --origin names"
        if not origins and not _all(scope, _OF_BROWSERS):
            return None
        strange = next((host for host in hosts if not self._is_own(host)), None)
        if strange is None:
            return None
        return (
            f"{strange[:_SHOWN]!r} may not be this worker: browse it by its address, or start it with --origin "
            f"http://{strange[:_SHOWN]}"
        )

    def _may(self, origin: str, hosts: Sequence[str]) -> bool:
        """Whether it is allowed, or the worker's own; a proxy in between may speak TLS for it."""
        return origin in self._allowed or _host(origin) in map(str.lower, hosts)

    def _is_own(self, host: str) -> bool:
        """Whether a call's host is an address, or a name that no stranger's record can give away."""
        told = host.lower()
        name = told[1:].partition("]")[0] if told.startswith("[") else told.partition(":")[0]
        return told in self._allowed_hosts or name in self._own_names or _is_address(name)


def _host(origin: str) -> str:
    return origin.partition("://")[2].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]
