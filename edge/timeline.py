"""The time at which the frames of a schedule are due, which a user may pause, step through and change the speed of."""

import threading
from collections.abc import Sequence

from shared import clock

_POLL_S = 0.2
_STEP_OF_SPEED = 2.0
_SLOWEST, _FASTEST = 1 / 64, 64.0
_NS_PER_S = 1e9


class Timeline:
    """Maps the offsets of a schedule to due times. One thread waits, any other one controls.

    As long as nobody pauses or changes the speed, an offset is due at the start plus the offset, however late the waiting
    thread is. A pause moves all later due times; no frame's latency contains it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The offset `_offset_ns` is due at `_since_ns`; later offsets follow at `_speed`.
        self._since_ns = 0
        self._offset_ns = 0.0
        self._speed = 1.0
        self._paused_ns: int | None = None  # When the pause began; None if there is none.
        self._steps = 0  # Frames that a paused user wants to see.
        self._pauses: list[int] = []
        self._speeds: list[float] = []

    @property
    def is_paused(self) -> bool:
        """True while frames become due by `step` only."""
        return self._paused_ns is not None

    @property
    def speed(self) -> float:
        """The speed relative to the schedule."""
        return self._speed

    @property
    def notes(self) -> Sequence[str]:
        """What the user did, for the record of the run."""
        notes = []
        if self._pauses:
            total_s = sum(self._pauses) / _NS_PER_S
            times = "once" if len(self._pauses) == 1 else f"{len(self._pauses)} times"
            notes.append(f"the user paused {times}, {total_s:.1f} s in all")
        if self._speeds:
            notes.append(f"the user changed the speed: {', '.join(f'×{speed:g}' for speed in self._speeds)}")
        return notes

    def toggle_pause(self) -> None:
        """Pauses, or goes on."""
        with self._changed:
            now_ns = clock.now_ns()
            if self._paused_ns is None:
                self._anchor(now_ns)
                self._paused_ns = now_ns
            else:
                self._pauses.append(now_ns - self._paused_ns)
                self._since_ns, self._paused_ns, self._steps = now_ns, None, 0
            self._changed.notify_all()

    def step(self) -> None:
        """Makes the next frame due now, in a pause."""
        with self._changed:
            self._steps += self.is_paused
            self._changed.notify_all()

    def faster(self) -> None:
        """Doubles the speed."""
        self._set_speed(min(_FASTEST, self._speed * _STEP_OF_SPEED))

    def slower(self) -> None:
        """Halves the speed."""
        self._set_speed(max(_SLOWEST, self._speed / _STEP_OF_SPEED))

    def wait_until(self, offset_ns: int, stop: threading.Event) -> int | None:
        """Waits until an offset is due and returns its due time; None when stopped. The first offset starts the time."""
        with self._changed:
            if not self._since_ns:
                self._since_ns, self._offset_ns = clock.now_ns(), offset_ns
            while not stop.is_set():
                now_ns = clock.now_ns()
                if self._steps:
                    self._steps -= 1
                    self._since_ns, self._offset_ns = now_ns, offset_ns
                    return now_ns
                due_ns = self._since_ns + round((offset_ns - self._offset_ns) / self._speed)
                if not self.is_paused and due_ns <= now_ns:
                    return due_ns
                wait_s = _POLL_S if self.is_paused else min(_POLL_S, (due_ns - now_ns) / _NS_PER_S)
                self._changed.wait(wait_s)
        return None

    def wait_while_paused(self, stop: threading.Event) -> None:
        """Returns when there is no pause, or a step of it; for frames that have no schedule."""
        with self._changed:
            while self.is_paused and not self._steps and not stop.is_set():
                self._changed.wait(_POLL_S)
            self._steps = max(0, self._steps - 1)

    def _set_speed(self, speed: float) -> None:
        with self._changed:
            if speed == self._speed:
                return
            if not self.is_paused:
                self._anchor(clock.now_ns())
            self._speed = speed
            self._speeds.append(speed)
            self._changed.notify_all()

    def _anchor(self, now_ns: int) -> None:
        """Makes now the point from which due times are computed."""
        if self._since_ns:
            self._offset_ns += (now_ns - self._since_ns) * self._speed
            self._since_ns = now_ns
