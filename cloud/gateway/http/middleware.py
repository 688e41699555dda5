"""The guard: what every HTTP call passes on its way in and out, whatever its route."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from starlette.requests import ClientDisconnect

from cloud.gateway.common.concurrency_limit import Capacity, Share

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PASSAGE = "passage"
_LINGER_S = 1.0  # So long a body that nobody reads is taken and thrown away, so that its sender sees the refusal.


class Passage(Share):
    """One call's part of the capacity, which the call's scope knows."""

    @classmethod
    def of(cls, scope: Scope) -> "Passage":
        """That of the call with this scope."""
        passage = scope["state"][_PASSAGE]
        assert isinstance(passage, cls)
        return passage

    def begin(self, scope: Scope) -> None:
        """The call is under way: `of` finds it."""
        scope.setdefault("state", {})[_PASSAGE] = self


class Guard:
    """Counts calls, reports unexpected exceptions, and closes the connection of a caller whose body is not read."""

    def __init__(
        self, app: App, capacity: Capacity, on_error: Callable[[Exception], None], count: Callable[[int], None]
    ) -> None:
        """`on_error` receives unexpected exceptions, whose calls have been answered with 500.

        `count` is called with the status of each answer.
        """
        self._app = app
        self._count = count
        self._capacity = capacity
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, as ASGI has it."""
        assert scope["type"] == "http"
        passage = Passage(self._capacity)
        passage.begin(scope)
        body = _Body(receive, scope)
        try:
            await self._app(scope, body.receive, body.seen_off(self._counted(send)))
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001  This call has failed, the worker goes on.
            self._on_error(error)
        finally:
            passage.leave()

    def _counted(self, send: Send) -> Send:
        async def counted(event: Event) -> None:
            if event["type"] == "http.response.start":
                self._count(event["status"])
            await send(event)

        return counted


class _Body:
    """A request's body, and whether all of it has come."""

    def __init__(self, receive: Receive, scope: Scope) -> None:
        self._receive = receive
        headers = dict(scope["headers"])
        self._is_over = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"

    async def receive(self) -> Event:
        event = await self._receive()
        self._is_over = event["type"] != "http.request" or not event.get("more_body", False)
        return event

    def seen_off(self, send: Send) -> Send:
        """A `send` that, where the answer is ready before the body has come, ends the connection gently behind it.

        Closed at once, with bytes unread, the kernel would throw the answer away as well.
        """

        async def sent(event: Event) -> None:
            if event["type"] == "http.response.start" and not self._is_over:
                event["headers"] = [*event.get("headers", ()), (b"connection", b"close")]
            elif event["type"] == "http.response.body" and not (self._is_over or event.get("more_body", False)):
                await send({**event, "more_body": True})
                with anyio.move_on_after(_LINGER_S):
                    while not self._is_over:
                        await self.receive()
                event = {"type": "http.response.body"}
            await send(event)

        return sent
