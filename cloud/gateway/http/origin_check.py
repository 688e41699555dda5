"""Origins: of which servers a web page must be that calls from a browser."""

from collections.abc import Sequence

from starlette.responses import JSONResponse

from cloud.gateway.common.errors import Kind
from cloud.gateway.http.middleware import App, Receive, Scope, Send

ANY = "*"  # In the place of an origin.

_SHOWN = 80  # Characters of a stranger's origin.


class Origins:
    """Refuses a foreign page's call before it is read.

    That a browser keeps the answer from such a page (CORS) does not keep the call from being answered: a form of any page
    can post a picture, or unload a model.
    """

    def __init__(self, app: App, allowed: Sequence[str]) -> None:
        """`allowed`: as browsers write them, `https://HOST` or `http://HOST:PORT`, or `ANY`."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, as ASGI has it. Its Host header has been checked."""
        hosts = [host.lower() for host in _all(scope, b"host")]
        foreign = next((each for each in _all(scope, b"origin") if not self._may(each, hosts)), None)
        if foreign is None:
            await self._app(scope, receive, send)
            return
        text = (
            f"pages of {foreign[:_SHOWN]!r} may not call: only those of this worker, or of a server that --origin names"
        )
        await JSONResponse({"error": text}, Kind.FORBIDDEN.http_status)(scope, receive, send)

    def _may(self, origin: str, hosts: Sequence[str]) -> bool:
        """Whether it is allowed, or the worker's own; a proxy in between may speak TLS for it."""
        if ANY in self._allowed or origin in self._allowed:
            return True
        return origin.partition("://")[2].lower() in hosts


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]
