"""The live view of a run: passes the newest frames to a separate process. A slow viewer never delays the run."""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Self

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import RunCounts
from edge.presenting.presentation import Presentation
from edge.presenting.presented_run import tick_frame
from edge.sinks.sink import FrameResult, PresentedTick
from edge.sinks.writer import frame_result
from edge.view.viewer import ViewError, ViewSettings, ViewUpdate, bytes_per_s
from shared import clock
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.runlog.latency_log import LatencyRow, csv_fields
from shared.task import task_named
from shared.threads import lower_priority

_LOG = get_logger("edge")
_START_S = 60.0  # Importing a viewer's library takes seconds on a busy machine.
_END_S = 3.0  # The last frames may take this long to be shown.
_PIPE_BYTES = 1 << 20  # Room for a frame, so that sending it takes one step.
_MAX_ROWS = 64  # Rows of the latency log that may wait; older ones are dropped.
_NO_COUNTS = RunCounts(0, 0, {}, {}, None)

_Item = tuple[int, Callable[[], FrameResult | None]]


class LiveView:
    """Shows a run in a viewer. Enter it before the run, and leave it after; all other methods return at once.

    Only the newest frame of each camera waits, and the latest rows.
    """

    def __init__(self, config: EdgeConfig, card: ModelCard) -> None:
        assert config.view is not None
        self.counts: Callable[[], RunCounts] = lambda: _NO_COUNTS  # Returns the totals of the run so far.
        self._config = config
        self._card = card
        self._frames: dict[tuple[str, bool], _Item] = {}
        self._rows: deque[LatencyRow] = deque(maxlen=_MAX_ROWS)
        self._changed = threading.Condition()
        self._has_ended = False

    def __enter__(self) -> Self:
        """Starts the viewer, and logs its address.

        Raises:
            ViewError: the viewer does not start.
        """
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edge.view.view_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pipesize=_PIPE_BYTES,
            start_new_session=True,  # Ctrl-C ends the run first, and the viewer's own processes end with this one.
        )
        try:
            self._open()
        except BaseException:
            self._kill()
            self._close()
            raise
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        self._thread.join(_END_S)
        with suppress(subprocess.TimeoutExpired):
            if not self._thread.is_alive():
                self._process.wait(_END_S)
        self._kill()
        self._thread.join()
        self._close()

    def ended(self, record: FrameRecord, result: ModelResult | None) -> None:
        """Shows a frame with its result, and its latency. See FrameListener."""
        with self._changed:
            self._rows.append(record.row)
            if result is not None:
                made = partial(frame_result, record, result, self._card)
                self._frames[record.row.camera, False] = clock.now_ns(), made
            self._changed.notify()

    def presented(self, tick: PresentedTick) -> None:
        """Shows the output of a presenter, or only the image of a tick without an output."""
        with self._changed:
            self._frames[tick.camera, True] = clock.now_ns(), partial(tick_frame, tick, self._config)
            self._changed.notify()

    def _open(self) -> None:
        config = self._config
        assert config.view is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = None if config.view_limit is None else bytes_per_s(config.view_limit)
        settings = ViewSettings(
            config.view,
            config.view_host,
            self._card,
            limit,
            tls_cert=config.view_tls_cert,
            tls_key=config.view_tls_key,
        )
        with suppress(OSError):  # It has ended already; the next line finds out why.
            self._send(settings)
        if not select.select([self._process.stdout], [], [], _START_S)[0]:
            raise ViewError(f"viewer {config.view} did not start within {_START_S:g} s: leave --view out")
        reply = json.loads(self._process.stdout.readline() or "{}")
        if "address" not in reply:
            raise ViewError(reply.get("error") or f"viewer {config.view} has ended: {self._last_words()}")
        _LOG.info("view ready", viewer=config.view, address=reply["address"], note=reply["note"])

    def _run(self) -> None:
        """Sends an update whenever the process asks for one, until the view ends; the body of a thread."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        lower_priority()
        has_ended = False
        try:
            while not has_ended:
                with self._changed:
                    self._changed.wait_for(lambda: self._frames or self._rows or self._has_ended)
                    has_ended = self._has_ended
                self._send(self._update())
                if not self._process.stdout.readline():
                    raise ViewError(self._last_words())
            self._process.stdin.close()
        except (OSError, SkylaneError) as error:
            if not self._has_ended:
                reason = self._last_words() if isinstance(error, OSError) else str(error)
                _LOG.warning("viewer ended; the run goes on without it", reason=reason)

    def _send(self, message: ViewSettings | ViewUpdate) -> None:
        """Waits while the pipe is full; raises an OSError if the process has ended."""
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin, pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def _update(self) -> ViewUpdate:
        """Returns the frames and rows since the previous update."""
        with self._changed:
            frames, rows = list(self._frames.values()), list(self._rows)
            self._frames.clear()
            self._rows.clear()
        made = [(time_ns, make()) for time_ns, make in frames]
        counts = self.counts()
        return ViewUpdate(
            clock.now_ns(),
            [(time_ns, frame) for time_ns, frame in made if frame is not None],
            [csv_fields(row) for row in rows],
            {outcome.value: number for outcome, number in counts.outcomes.items()},
            counts.in_flight,
        )

    def _kill(self) -> None:
        """Ends the process and those that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it gave no reason"


@contextmanager
def open_view(config: EdgeConfig, card: ModelCard, presentation: Presentation | None) -> Iterator[LiveView | None]:
    """Yields the live view of a run; None if no view is configured.

    Raises:
        SkylaneError: the viewer cannot be started.
    """
    if config.view is None:
        yield None
        return
    if not task_named(card.task).heads:
        raise ViewError(f"no viewer shows raw tensors, which model {card.name} answers: leave --view out")
    with LiveView(config, card) as view:
        if presentation is not None:
            presentation.listeners.append(view.presented)
        yield view
