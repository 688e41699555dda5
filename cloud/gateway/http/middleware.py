"""ASGI middleware that every HTTP call passes, whatever its route."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from starlette.requests import ClientDisconnect

from cloud.gateway.http.concurrency_limit import CallSlot, ConcurrencyLimit

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_DRAIN_S = 1.0  # Time for which an unread body is discarded, so that its sender can receive the error response.


class CallMiddleware:
    """Counts calls, reports unexpected exceptions, and closes the connection if a body was not read completely."""

    def __init__(
        self, app: App, limit: ConcurrencyLimit, on_error: Callable[[Exception], None], count: Callable[[int], None]
    ) -> None:
        """`on_error` receives unexpected exceptions; their calls have been answered with 500.

        `count` is called with the status of each response.
        """
        self._app = app
        self._count = count
        self._limit = limit
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call (ASGI)."""
        assert scope["type"] == "http"
        slot = CallSlot(self._limit, scope)
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
            slot.release()
