"""Places for what may take long; of a bounded number, so that no caller can take them all."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from shared import clock


class Holder(Protocol):
    """A call or a connection."""

    @property
    def host(self) -> str:
        """Its caller's address."""

    def cancel(self) -> None:
        """End it, whatever is under way; returns at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One that is held."""

    host: str
    since_ns: int
    holder: Holder


class Places:
    """Who holds most of them gives up the oldest for a newcomer. Any thread may call it."""

    def __init__(self, most: int) -> None:
        """`most`: of them at a time."""
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[Place, None] = {}  # The oldest first.

    @contextmanager
    def held(self, holder: Holder) -> Iterator[None]:
        """A place as long as the block lasts; ended is what must leave for it."""
        place = self.enter(holder)
        try:
            yield
        finally:
            self.leave(place)

    def enter(self, holder: Holder) -> Place:
        """A place until it is left; ended is what must leave for it."""
        place = Place(holder.host, clock.now_ns(), holder)
        with self._lock:
            leaving = self._oldest_of_most() if len(self._held) >= self._most else None
            if leaving is not None:
                del self._held[leaving]
            self._held[place] = None
        if leaving is not None:
            leaving.holder.cancel()
        return place

    def leave(self, place: Place) -> None:
        """Give a place up, if it is still held."""
        with self._lock:
            self._held.pop(place, None)

    def end_oldest_before(self, since_ns: int) -> None:
        """End the oldest of who holds most, if it has held its place since before then."""
        with self._lock:
            leaving = self._oldest_of_most() if self._held else None
            if leaving is None or leaving.since_ns >= since_ns:
                return
            del self._held[leaving]  # Though it may hold on for a moment, it is not ended again.
        leaving.holder.cancel()

    def end_those_before(self, since_ns: int) -> None:
        """End those that have held a place since before then."""
        with self._lock:
            late = [place for place in self._held if place.since_ns < since_ns]
            for place in late:
                del self._held[place]
        for place in late:
            place.holder.cancel()

    def _oldest_of_most(self) -> Place:
        ((host, _),) = Counter(place.host for place in self._held).most_common(1)
        return next(place for place in self._held if place.host == host)
