"""Admission: the one bounded queue of all frames, which is fair to every vehicle, and the circuit breaker before it.

Vehicles take turns: the one that was served longest ago is next, and a vehicle whose frames expire keeps its turn.
Within a vehicle, the camera whose first frame is due first is next; within a camera, the order is first in, first out.
If the queue is full, the newest frame of the vehicle with the most waiting frames is dropped for a vehicle with fewer
(longest queue drop: Suter, Lakshman, Stiliadis and Choudhury 1999), so that no vehicle can fill the queue for others.
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
from shared.clock import Deadline
from shared.logs import get_logger
from shared.messages.msgpack_reader import MAX_NS

STRIKES = 3  # Frames that open the circuit.
_RESET_NS = 60_000_000_000
_FIRST_BLOCK_NS = 5_000_000_000
_LONGEST_BLOCK_NS = 300_000_000_000
_MAX_VEHICLES = 1024
_LOG = get_logger("cloud")


@dataclass(slots=True)
class _Record:
    """The state of the circuit of one vehicle."""

    strikes: int = 0
    last_strike_ns: int = 0
    blocked_until_ns: int = 0
    is_open: bool = False  # The state that was logged last.


class CircuitBreaker:
    """Blocks a vehicle whose frames repeatedly end the process of an isolated engine. Thread-safe.

    Each such frame costs two restarts of the engine, during which all other vehicles wait. Three of them, each less than a
    minute after the one before, open the circuit for five seconds; each further one doubles the time, up to five minutes.
    A minute without such a frame resets the count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()  # The vehicle with the latest strike is the last.

    def strike(self, vehicle: str) -> None:
        """Records that a frame of a vehicle ended the process of an engine."""
        now_ns = clock.now_ns()
        with self._lock:
            record = self._records.setdefault(vehicle, _Record())
            self._records.move_to_end(vehicle)
            if len(self._records) > _MAX_VEHICLES:
                self._records.popitem(last=False)
            if now_ns - max(record.last_strike_ns, record.blocked_until_ns) > _RESET_NS:
                record.strikes = 0
            record.strikes += 1
            record.last_strike_ns = now_ns
            if record.strikes >= STRIKES:
                doublings = min(record.strikes - STRIKES, 10)
                block_ns = min(_LONGEST_BLOCK_NS, _FIRST_BLOCK_NS << doublings)
                record.blocked_until_ns = now_ns + block_ns
                record.is_open = True
                _LOG.warning("vehicle blocked", vehicle=vehicle, seconds=block_ns / 1e9, strikes=record.strikes)

    def reason(self, vehicle: str) -> str | None:
        """The reason why frames of a vehicle are refused now; None while its circuit is closed."""
        if not self._records:
            return None
        now_ns = clock.now_ns()
        with self._lock:
            record = self._records.get(vehicle)
            if record is None:
                return None
            if now_ns >= record.blocked_until_ns:
                if record.is_open:
                    record.is_open = False
                    _LOG.info("vehicle unblocked", vehicle=vehicle)
                return None
            left_s = (record.blocked_until_ns - now_ns) / 1e9
            return f"vehicle {vehicle} is blocked for {left_s:.0f} s: {record.strikes} of its frames ended the engine's process"


T = TypeVar("T")

_STALE = 4  # Deadlines and vehicles that are remembered, as a multiple of the frames that may wait.


@dataclass(frozen=True, slots=True)
class _Entry:
    """A waiting frame."""

    ticket: int  # Increases in the order of arrival.
    request: Request
    size: int  # Bytes of the payload at its arrival.

    @property
    def order(self) -> tuple[int, int]:
        """The sort key among the cameras of a vehicle: due time, then arrival; frames without a due time are last."""
        due_ns = self.request.header.due_ns
        return (MAX_NS if due_ns is None else due_ns, self.ticket)


@dataclass(slots=True)
class _VehicleQueue:
    """The waiting frames of one vehicle, by camera and ticket."""

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

    def first_frames(self) -> list[_Entry]:
        """The first frame of each camera, in the order in which they are due."""
        return sorted((next(iter(camera.values())) for camera in self.cameras.values()), key=lambda entry: entry.order)

    def newest(self) -> _Entry:
        """The frame that arrived last."""
        return max(
            (next(reversed(camera.values())) for camera in self.cameras.values()), key=lambda entry: entry.ticket
        )


class Admission:
    """A fair queue that is bounded by the number of frames and by their bytes. Thread-safe."""

    def __init__(self, max_frames: int = 64, max_bytes: int = 256 << 20) -> None:
        self.max_frames = max_frames
        self._max_bytes = max_bytes
        self._condition = threading.Condition()
        self._queues: dict[str, _VehicleQueue] = {}  # Queues by vehicle, none of them empty.
        # The lowest turn is next; a vehicle gets one when it arrives and when it is served.
        self._turns: dict[str, int] = {}
        self._next_turn = itertools.count()
        self._tickets = itertools.count()
        self._waiting: dict[int, _Entry] = {}  # All waiting frames by ticket.
        # A heap of deadlines and tickets, also of frames that have left.
        self._deadlines: list[tuple[Deadline, int]] = []
        self._bytes = 0
        self._waiting_by_model: Counter[str] = Counter()  # Zero counts are deleted, because clients choose the names.
        self._closed = False

    @property
    def depth(self) -> int:
        """Number of waiting frames."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """Number of further frames that fit, if they are as large as the waiting ones on average."""
        depth, size = len(self._waiting), self._bytes
        by_count = self.max_frames - depth
        return max(0, min(by_count, (self._max_bytes - size) * depth // size) if size else by_count)

    def depth_of(self, model: str) -> int:
        """Number of waiting frames of a model."""
        return self._waiting_by_model[model]

    def depths(self) -> Mapping[str, int]:
        """Number of waiting frames by model name, as given by the clients."""
        with self._condition:
            return dict(self._waiting_by_model)

    def offer(self, request: Request) -> Sequence[Request]:
        """Adds a frame without waiting; returns the frames that do not fit, which the caller must refuse.

        These are the frame itself, or frames that were dropped for it: expired ones, and the newest ones of a vehicle
        with more waiting frames.
        """
        with self._condition:
            if self._closed:
                return (request,)
            entry = _Entry(next(self._tickets), request, len(request.payload))
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
        """Waits for a frame that `choose` accepts; returns it with the result of `choose`, or None once closed and empty.

        `choose` is called for the frames in the order of their turns, expired frames first. It returns None for a frame
        that cannot be processed yet, and that frame keeps its turn. A refusal does not count as the turn of the
        vehicle. `choose` must not block, because the queue is locked.
        """
        with self._condition:
            while True:
                for entry in self._candidates():
                    chosen = choose(entry.request)
                    if chosen is not None:
                        self._remove(entry)
                        if not isinstance(chosen, Refusal):
                            self._turns[entry.request.vehicle] = next(self._next_turn)
                        return entry.request, chosen
                if self._closed and not self._waiting:
                    return None
                self._condition.wait(self._until_next_deadline_s())

    def wake(self) -> None:
        """Makes every waiting `take` call `choose` again, because a batcher has a free slot."""
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        """Accepts no more frames; waiting frames can still be taken."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def abandon(self) -> int:
        """Removes the waiting frames and returns their number. They get no reply, so that their vehicles send them again."""
        with self._condition:
            entries = [*self._waiting.values()]
            for entry in entries:
                self._remove(entry)
            self._condition.notify_all()
        return len(entries)

    def _candidates(self) -> Iterator[_Entry]:
        """Yields an expired frame, then the first frames of each camera, in the order of the vehicles' turns."""
        expired = self._first_expired()
        if expired is not None:
            yield expired
        for vehicle in sorted(self._queues, key=self._turns.__getitem__):
            yield from self._queues[vehicle].first_frames()

    def _first_expired(self) -> _Entry | None:
        """The waiting frame with the earliest deadline, if it has passed."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        if self._deadlines and self._deadlines[0][0].is_expired():
            return self._waiting[self._deadlines[0][1]]
        return None

    def _until_next_deadline_s(self) -> float | None:
        """Seconds until the next frame expires and can be taken out of turn."""
        return self._deadlines[0][0].remaining_s() + 1e-3 if self._deadlines else None

    def _is_too_full_for(self, entry: _Entry) -> bool:
        return len(self._waiting) >= self.max_frames or self._bytes + entry.size > self._max_bytes

    def _victims(self, entry: _Entry) -> list[_Entry] | None:
        """Removes the frames that must be dropped for a new one; removes none and returns None if that is not fair."""
        victims: list[_Entry] = []
        while self._is_too_full_for(entry):
            victim = self._victim(entry)
            if victim is None:
                for other in reversed(victims):
                    self._insert(other)  # Each was the newest of its vehicle, so the order is restored.
                return None
            self._remove(victim)
            victims.append(victim)
        return victims

    def _victim(self, entry: _Entry) -> _Entry | None:
        """The newest frame of the vehicle with the most, unless it would then have less than the vehicle of `entry`."""
        if not self._queues:
            return None
        own = self._queues.get(entry.request.vehicle, _VehicleQueue())
        if len(self._waiting) >= self.max_frames:
            most = max(self._queues.values(), key=lambda queue: queue.frames)
            return most.newest() if most.frames - 1 > own.frames else None
        largest = max(self._queues.values(), key=lambda queue: queue.size)
        newest = largest.newest()
        return newest if largest.size - newest.size >= own.size + entry.size else None

    def _insert(self, entry: _Entry) -> None:
        vehicle = entry.request.vehicle
        self._queues.setdefault(vehicle, _VehicleQueue()).append(entry)
        if vehicle not in self._turns:  # A new name must not get an earlier turn.
            self._forget_turns()
            self._turns[vehicle] = next(self._next_turn)
        self._waiting[entry.ticket] = entry
        self._waiting_by_model[entry.request.model] += 1
        self._bytes += entry.size
        if entry.request.deadline == Deadline.NEVER:
            return
        heapq.heappush(self._deadlines, (entry.request.deadline, entry.ticket))
        if len(self._deadlines) > _STALE * (
            self.max_frames + 1
        ):  # Far deadlines of frames that have left must not accumulate.
            self._deadlines = [item for item in self._deadlines if item[1] in self._waiting]
            heapq.heapify(self._deadlines)

    def _forget_turns(self) -> None:
        """Forgets the turns of vehicles without waiting frames once there are too many."""
        if len(self._turns) > _STALE * (self.max_frames + 1):
            self._turns = {vehicle: turn for vehicle, turn in self._turns.items() if vehicle in self._queues}

    def _remove(self, entry: _Entry) -> None:
        queue = self._queues[entry.request.vehicle]
        queue.remove(entry)
        if not queue.frames:
            del self._queues[entry.request.vehicle]
        del self._waiting[entry.ticket]
        model = entry.request.model
        self._waiting_by_model[model] -= 1
        if not self._waiting_by_model[model]:
            del self._waiting_by_model[model]
        self._bytes -= entry.size
