"""Admission: the one bounded queue that every frame enters by, fair to every vehicle.

Order: round robin over vehicles, the one that was served longest ago first, even where its frames have expired since:
none loses its turn with a frame. Within a vehicle the camera whose first frame is due first; within a camera first in,
first out. Where the queue is full, the newest frame of the vehicle that holds the most makes room for a vehicle that
holds less (longest queue drop: Suter, Lakshman, Stiliadis and Choudhury 1999), so that nobody can fill it for others.
"""

import heapq
import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cloud.serving.request import Refusal, Request
from shared import clock
from shared.encoding.field_types import MAX_NS

T = TypeVar("T")

_STALE = 4  # So many times more endings, and vehicles, than frames may be kept.


@dataclass(frozen=True, slots=True)
class _Entry:
    """A frame that waits. Its size is that of its payload when it came: whoever takes it empties it."""

    ticket: int  # Counts up in order of arrival.
    request: Request
    size: int
    ends_ns: int | None

    @property
    def order(self) -> tuple[int, int]:
        """Among a vehicle's cameras: due first, and before those that tell no such time, in order of arrival."""
        due_ns = self.request.head.due_ns
        return (MAX_NS if due_ns is None else due_ns, self.ticket)


@dataclass(slots=True)
class _Line:
    """What one vehicle has waiting, by camera."""

    cameras: dict[str, OrderedDict[int, _Entry]] = field(default_factory=dict)
    frames: int = 0
    size: int = 0

    def append(self, entry: _Entry) -> None:
        self.cameras.setdefault(entry.request.camera, OrderedDict())[entry.ticket] = entry
        self.frames += 1
        self.size += entry.size

    def remove(self, entry: _Entry) -> None:
        camera = self.cameras[entry.request.camera]
        del camera[entry.ticket]
        if not camera:
            del self.cameras[entry.request.camera]
        self.frames -= 1
        self.size -= entry.size

    def heads(self) -> list[_Entry]:
        """The first frame of each camera, the one that is due first leading."""
        return sorted((next(iter(camera.values())) for camera in self.cameras.values()), key=lambda entry: entry.order)

    def newest(self) -> _Entry:
        """The frame that came last."""
        return max(
            (next(reversed(camera.values())) for camera in self.cameras.values()), key=lambda entry: entry.ticket
        )


class Admission:
    """Bounded by count and by bytes, so that overload costs an answer and not the memory. Any thread may call it."""

    def __init__(self, max_frames: int = 64, max_bytes: int = 256 << 20) -> None:
        self.max_frames = max_frames
        self._max_bytes = max_bytes
        self._condition = threading.Condition()
        self._lines: dict[str, _Line] = {}  # Of vehicles that wait.
        self._turns: dict[str, int] = {}  # When each vehicle was served last, or came first; the lowest turn is next.
        self._services = itertools.count()
        self._tickets = itertools.count()
        self._waiting: dict[int, _Entry] = {}  # By ticket.
        self._endings: list[tuple[int, int]] = []  # Ends of budgets and tickets, a heap; what left since is skipped.
        self._bytes = 0
        self._closed = False

    @property
    def depth(self) -> int:
        """How many frames wait."""
        return len(self._waiting)

    def depths(self) -> Mapping[str, int]:
        """The same by model, as their senders name it."""
        with self._condition:
            return Counter(entry.request.model for entry in self._waiting.values())

    def offer(self, request: Request) -> Sequence[Request]:
        """Take a frame in at once; what does not fit comes back, and must be refused by the caller.

        That is nothing, or the frame itself, or others' frames that made room for it: such as expired meanwhile, and
        the newest ones of a vehicle that holds more.
        """
        with self._condition:
            if self._closed:
                return (request,)
            entry = _Entry(next(self._tickets), request, len(request.payload), request.deadline_ns)
            removed: list[_Entry] = []
            while self._is_too_full_for(entry) and (expired := self._first_expired()):
                self._remove(expired)
                removed.append(expired)
            victims = self._victims(entry)
            if victims is None:
                return [*(other.request for other in removed), request]
            self._insert(entry)
            self._condition.notify()
        return [other.request for other in (*removed, *victims)]

    def take(self, choose: Callable[[Request], T | Refusal | None]) -> tuple[Request, T | Refusal] | None:
        """Wait for a frame, and hand it out with what `choose` says of it; None once closed and empty.

        `choose` is asked of the frames in the order in which their turns come, of expired ones first; it says None
        where a frame cannot be worked on yet, which then keeps its turn. A refusal costs its vehicle no turn. `choose`
        must not wait: the queue is locked.
        """
        with self._condition:
            while True:
                for entry in self._candidates():
                    chosen = choose(entry.request)
                    if chosen is not None:
                        self._remove(entry)
                        self._served(entry.request, chosen)
                        return entry.request, chosen
                if self._closed and not self._waiting:
                    return None
                self._condition.wait(self._until_next_end_s())

    def wake(self) -> None:
        """Have everyone who waits choose again: there is room where there was none."""
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        """Let no more frames in; those that wait are still handed out."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _served(self, request: Request, chosen: object) -> None:
        if not isinstance(chosen, Refusal):
            self._turns[request.vehicle] = next(self._services)

    def _candidates(self) -> Iterator[_Entry]:
        """Whose turn it is, best first: expired frames, then of every vehicle in turn each camera's first."""
        expired = self._first_expired()
        if expired is not None:
            yield expired
        for vehicle in sorted(self._lines, key=self._turns.__getitem__):
            yield from self._lines[vehicle].heads()

    def _first_expired(self) -> _Entry | None:
        """A frame whose budget has ended while it waited."""
        while self._endings and self._endings[0][1] not in self._waiting:
            heapq.heappop(self._endings)
        if self._endings and self._endings[0][0] < clock.now_ns():
            return self._waiting[self._endings[0][1]]
        return None

    def _until_next_end_s(self) -> float | None:
        """How long until the next frame expires, which then need not wait for its turn."""
        return max(0.0, (self._endings[0][0] - clock.now_ns()) / 1e9) + 1e-3 if self._endings else None

    def _is_too_full_for(self, entry: _Entry) -> bool:
        return len(self._waiting) >= self.max_frames or self._bytes + entry.size > self._max_bytes

    def _victims(self, entry: _Entry) -> list[_Entry] | None:
        """Remove what must go for a frame; None, and all as it was, where that would be more than is fair."""
        victims: list[_Entry] = []
        while self._is_too_full_for(entry):
            victim = self._victim(entry)
            if victim is None:
                for other in reversed(victims):
                    self._insert(other)  # They were the newest, so they come to stand where they stood.
                return None
            self._remove(victim)
            victims.append(victim)
        return victims

    def _victim(self, entry: _Entry) -> _Entry | None:
        """The newest frame of the vehicle that holds the most, unless that would then hold less than the newcomer's."""
        if not self._lines:
            return None
        own = self._lines.get(entry.request.vehicle, _Line())
        if len(self._waiting) >= self.max_frames:
            most = max(self._lines.values(), key=lambda line: line.frames)
            return most.newest() if most.frames - 1 > own.frames else None
        largest = max(self._lines.values(), key=lambda line: line.size)
        newest = largest.newest()
        return newest if largest.size - newest.size >= own.size + entry.size else None

    def _insert(self, entry: _Entry) -> None:
        vehicle = entry.request.vehicle
        self._lines.setdefault(vehicle, _Line()).append(entry)
        if vehicle not in self._turns:  # Last in turn, whoever it is: a new name must be no way past the others.
            self._forget_turns()
            self._turns[vehicle] = next(self._services)
        self._waiting[entry.ticket] = entry
        self._bytes += entry.size
        if entry.ends_ns is None:
            return
        heapq.heappush(self._endings, (entry.ends_ns, entry.ticket))
        if len(self._endings) > _STALE * (self.max_frames + 1):  # Budgets of hours must not keep what left long ago.
            self._endings = [ending for ending in self._endings if ending[1] in self._waiting]
            heapq.heapify(self._endings)

    def _forget_turns(self) -> None:
        """Keep no vehicles without end: of too many, those that do not wait are forgotten."""
        if len(self._turns) > _STALE * (self.max_frames + 1):
            self._turns = {vehicle: turn for vehicle, turn in self._turns.items() if vehicle in self._lines}

    def _remove(self, entry: _Entry) -> None:
        line = self._lines[entry.request.vehicle]
        line.remove(entry)
        if not line.frames:
            del self._lines[entry.request.vehicle]
        del self._waiting[entry.ticket]
        self._bytes -= entry.size
