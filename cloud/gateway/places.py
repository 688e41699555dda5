"""Places for gRPC calls that may take long; of a bounded number, so that no caller can take them all."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import grpc

from cloud.gateway.grpc_call import host_of
from shared import clock


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    host: str
    since_ns: int
    context: grpc.ServicerContext


class Places:
    """Who holds most of them gives up the oldest for a newcomer. Any thread may call it."""

    def __init__(self, most: int) -> None:
        """`most`: calls at a time."""
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[_Place, None] = {}  # The oldest first.

    @contextmanager
    def held(self, context: grpc.ServicerContext) -> Iterator[None]:
        """A place for a call, as long as the block lasts; ended is what must leave for it."""
        place = self._enter(context)
        try:
            yield
        finally:
            self._leave(place)

    def keep(self, context: grpc.ServicerContext) -> None:
        """A place for a call until it is over: its caller has taken the answer, or has gone."""
        place = self._enter(context)
        if not context.add_callback(partial(self._leave, place)):  # It is so already.
            self._leave(place)

    def end_those_before(self, since_ns: int) -> None:
        """End the calls that have held a place since before then."""
        with self._lock:
            late = [place for place in self._held if place.since_ns < since_ns]
        for place in late:
            place.context.cancel()

    def _enter(self, context: grpc.ServicerContext) -> _Place:
        place = _Place(host_of(context.peer()), clock.now_ns(), context)
        with self._lock:
            leaving = self._oldest_of_most() if len(self._held) >= self._most else None
            if leaving is not None:
                del self._held[leaving]
            self._held[place] = None
        if leaving is not None:
            leaving.context.cancel()
        return place

    def _leave(self, place: _Place) -> None:
        with self._lock:
            self._held.pop(place, None)

    def _oldest_of_most(self) -> _Place:
        ((host, _),) = Counter(place.host for place in self._held).most_common(1)
        return next(place for place in self._held if place.host == host)
