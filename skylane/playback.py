"""Plays a source in a Python program and iterates over the results: `skylane.play`."""

import os
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args, get_origin

from rich.console import Console

from edge.config import EdgeConfig
from edge.node import EdgeNode
from edge.run import RunEnd
from edge.run import play as play_run
from edge.sinks.sink import FrameResult, PresentedTick
from shared.config import from_environment, validate
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.threads import ThreadGroup
from skylane.arguments import ArgumentError, path_argument

_WAITING = 64  # Results that wait for the program.
_END_TIMEOUT_S = 600.0

_LOG = get_logger("edge")


class PlayConfig(EdgeConfig):
    """The settings of a run, public as `skylane.EdgeConfig`: the keys on the page of the configuration.

    Raises:
        SkylaneError: a setting is unknown, or its value is wrong.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**_validated("EdgeConfig", settings).model_dump(exclude_unset=True))


class PlaySettingsError(SkylaneError):
    """The settings of a run contradict each other."""


def play(
    source: Path | str, config: EdgeConfig | None = None, /, **settings: Any
) -> Generator[FrameResult | PresentedTick, None, None]:
    """Plays a source to a worker, like `skylane edge play`, and yields each result as soon as it is there.

        for result in skylane.play("drive.mcap", model="road-small", closed_loop=True):
            print(result.camera, result.sequence, result.result.shape)

    The run starts with the first `next`, in a thread beside the loop. Leaving the loop, or `close`, stops it in order: no more
    frames are sent, those in flight are waited for. Without `out`, the files of the run are in a temporary folder that is removed
    at its end. A program that is slower than the cameras misses results, the oldest first, with a warning in the log; without a
    presenter, a closed loop waits for it instead.

    Args:
        source: A bag, a video file, a folder of images, `camera:0`, or `NAME:…` of a plug-in.
        config: The settings of the run.
        settings: Single settings by key, see the page of the configuration; they override those of `config`. What neither names
            is taken from SKYLANE_BROKER and SKYLANE_CERTS, as in the commands.

    Yields:
        Without a presenter, a FrameResult for each frame with a result: its `image` (the model's input, RGB H×W×3 uint8) and the
        `result` (H×W uint8 class ids for a segmentation), with `camera`, `sequence`, `stamp_ns` and `origin` (`worker`, `reused`
        or `local`). With `present`, a PresentedTick for every frame: the same, made for the frame, with the `age_ns` of the
        result and `after_due_ns`, the time after due at which it was ready; without an output, its `result` is None and
        `reason` says why.

    Raises:
        SkylaneError: a setting is wrong. Raised by the loop: the run could not begin, or had a fault, after the last result.
    """
    if config is not None and not isinstance(config, EdgeConfig):
        raise ArgumentError("config", config, "give a skylane.EdgeConfig, and single settings by their names")
    path_argument("source", source, "a bag, a video file or a folder of images, or camera:0")
    named = os.fspath(source)
    given = ({} if config is None else config.model_dump(exclude_unset=True)) | settings
    config = _validated("play", from_environment(EdgeConfig) | given)
    if config.sinks and config.out is None:
        raise PlaySettingsError("`sinks`: the run keeps no files: set `out` to a folder, or leave `sinks` out")
    return _results(named, config)


def _validated(function: str, settings: Mapping[str, Any]) -> EdgeConfig:
    """Validates settings; a single text or path counts as a list of one where a list is expected."""
    lists = {key for key, field in EdgeConfig.model_fields.items() if _is_list(field.annotation)}
    given = {
        key: (value,) if key in lists and isinstance(value, str | os.PathLike) else value
        for key, value in settings.items()
    }
    return validate(Path(function), given, EdgeConfig)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))


def _results(source: str, config: EdgeConfig) -> Generator[FrameResult | PresentedTick, None, None]:
    with ExitStack() as stack:
        if config.out is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-"))
            config = config.model_copy(update={"out": Path(folder) / "run", "sinks": ()})
        run = _Run(source, config)
        try:
            while (result := run.next()) is not None:
                yield result
        finally:
            faults = run.end()
            for fault in faults:
                _LOG.error("run failed", reason=str(fault))
    if faults:
        raise faults[0]


class _Run:
    """A run in a thread of its own, and the results that its reader has not taken yet."""

    def __init__(self, source: str, config: EdgeConfig) -> None:
        self._source = source
        self._config = config
        self._waits_for_reader = config.closed_loop and config.present is None
        self._changed = threading.Condition()
        self._waiting: deque[FrameResult | PresentedTick] = deque(maxlen=_WAITING)
        self._missed = 0  # Results that the reader was too slow for.
        self._node: EdgeNode | None = None
        self._is_stopped = False
        self._has_ended = False
        self._end: RunEnd | None = None
        self._threads = ThreadGroup(lambda: None)
        self._threads.start("vehicle", self._play)

    def next(self) -> FrameResult | PresentedTick | None:
        """Waits for the next result; returns None at the end of the run."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended)
            self._changed.notify_all()
            return self._waiting.popleft() if self._waiting else None

    def end(self) -> list[SkylaneError]:
        """Stops the run if it still goes on, waits for its end, and returns its faults.

        Raises:
            SkylaneError: the run could not begin.
        """
        with self._changed:
            if self._missed:
                _LOG.warning("program too slow", results_missed=self._missed)
            self._is_stopped = True
            self._changed.notify_all()
            if self._node is not None:
                self._node.stop()
        self._threads.join(_END_TIMEOUT_S)
        assert self._end is not None
        return list(self._end.faults)

    def _play(self) -> None:
        try:
            self._end = play_run(
                self._source, self._config, Console(quiet=True), on_begin=self._begun, on_result=self._add
            )
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _begun(self, node: EdgeNode) -> None:
        with self._changed:
            self._node = node
            if self._is_stopped:
                node.stop()

    def _add(self, result: FrameResult | PresentedTick) -> None:
        with self._changed:
            if self._waits_for_reader:
                self._changed.wait_for(lambda: len(self._waiting) < _WAITING or self._is_stopped)
            self._missed += len(self._waiting) == _WAITING and not self._is_stopped
            self._waiting.append(result)
            self._changed.notify_all()
