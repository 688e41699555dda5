"""A run in a Python program: an iterator of what the vehicle could act on at every frame."""

import threading
from collections import deque
from collections.abc import Generator

from rich.console import Console

from edge.config import EdgeConfig
from edge.node import EdgeNode
from edge.presenting.presentation import PresentedTick
from edge.run import RunEnd, play
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.runtime.threads import ThreadGroup

_WAITING = 64  # Ticks that wait for the program.
_END_TIMEOUT_S = 600.0

_LOG = get_logger("edge")


class OutputsError(SkylaneError):
    """The configuration of a run presents no outputs."""


def outputs(source: str, config: EdgeConfig) -> Generator[PresentedTick, None, None]:
    """Plays a source like `skylane edge play`, and yields the output for every frame as soon as it is ready.

    The node runs in a thread beside the loop, and writes the run's folder as usual:

        config = EdgeConfig(model="road-small", present="warp", sinks=())
        for output in outputs("drive.mcap", config):
            print(output.camera, output.sequence, output.origin, output.age_ns, output.result)

    A frame without an output is yielded with the origin `none` and the reason; its result is None. The run starts with the
    first `next`. Leaving the loop, or `close`, stops it in order: no more frames are sent, those
    in flight are waited for, and the files of the run are complete afterwards. A program that is slower than the cameras
    misses outputs, the oldest first; `presented.csv` has all of them.

    Args:
        source: A bag, a video file, a folder of images or a camera.
        config: The configuration of the run; it names a presenter. Unless `sinks` is empty, results are written as well.

    Raises:
        OutputsError: the configuration has no presenter.
        SkylaneError: the run could not begin, or had a fault; raised by the loop after the last output.
    """
    if config.present is None:
        raise OutputsError("`present`: the run would have no outputs: set it to hold, warp or fuse")
    return _outputs(source, config)


def _outputs(source: str, config: EdgeConfig) -> Generator[PresentedTick, None, None]:
    run = _Run(source, config)
    try:
        while (tick := run.next()) is not None:
            yield tick
    finally:
        faults = run.end()
        for fault in faults:
            _LOG.error("run failed", reason=str(fault))
    if faults:
        raise faults[0]


class _Run:
    """A run in a thread of its own, and the ticks that its reader has not taken yet."""

    def __init__(self, source: str, config: EdgeConfig) -> None:
        self._source = source
        self._config = config
        self._changed = threading.Condition()
        self._waiting: deque[PresentedTick] = deque(maxlen=_WAITING)
        self._node: EdgeNode | None = None
        self._is_stopped = False
        self._has_ended = False
        self._end: RunEnd | None = None
        self._threads = ThreadGroup(lambda: None)
        self._threads.start("vehicle", self._play)

    def next(self) -> PresentedTick | None:
        """Waits for the next tick; returns None at the end of the run."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended)
            return self._waiting.popleft() if self._waiting else None

    def end(self) -> list[SkylaneError]:
        """Stops the run if it still goes on, waits for its end, and returns its faults.

        Raises:
            SkylaneError: the run could not begin.
        """
        with self._changed:
            self._is_stopped = True
            if self._node is not None:
                self._node.stop()
        self._threads.join(_END_TIMEOUT_S)
        assert self._end is not None
        return list(self._end.faults)

    def _play(self) -> None:
        try:
            self._end = play(
                self._source, self._config, Console(quiet=True), on_begin=self._begun, on_presented=[self._add]
            )
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify()

    def _begun(self, node: EdgeNode) -> None:
        with self._changed:
            self._node = node
            if self._is_stopped:
                node.stop()

    def _add(self, tick: PresentedTick) -> None:
        with self._changed:
            self._waiting.append(tick)
            self._changed.notify()
