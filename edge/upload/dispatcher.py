"""Distributes images over workers by load: a worker gets the next image when one of its connections is free."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edge.upload.client import ImageResult, UploadClient, WorkerBusyError, WorkerLostError
from shared.errors import SkylaneError
from shared.threads import ThreadGroup

_MAX_ATTEMPTS = 3  # Workers that may fail on an image, which may itself be the cause.
_MAX_BUSY_REPLIES = 120  # Consecutive replies after which a worker counts as lost.
_JOIN_TIMEOUT_S = 120.0  # Time limit of `run`, per image.


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """The result or the failure of an image."""

    image: Path
    worker: str  # Address of the last worker that got the image; empty: no worker got it.
    result: ImageResult | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Job:
    """An image that has no outcome yet. `attempts`: number of workers that were lost while they had it."""

    image: Path
    attempts: int = 0


class UploadDispatcher:
    """Uploads images; an image whose worker was lost goes to another one, up to three workers in all."""

    def __init__(
        self, images: Iterable[Path], on_outcome: Callable[[UploadOutcome], None], *, busy_pause_s: float = 0.5
    ) -> None:
        """Queues the images. `on_outcome` is called once per image, never concurrently."""
        self._waiting = deque(_Job(image) for image in images)
        self._on_outcome = on_outcome
        self._busy_pause_s = busy_pause_s
        self._condition = threading.Condition()
        self._in_progress = 0
        self._stopped = False
        self._callback_failed = False
        self._lost: dict[str, str] = {}
        self._threads = ThreadGroup(self.stop)

    @property
    def lost(self) -> Mapping[str, str]:
        """The workers that were lost, with the reason."""
        return dict(self._lost)

    def run(self, workers: Mapping[str, Sequence[Callable[[], UploadClient]]]) -> None:
        """Uploads all images and returns when each has its outcome, a fault if `stop` was called or no worker is left.

        `workers`: by address, one function per connection that opens its client.
        """
        for worker, connections in workers.items():
            for number, connect in enumerate(connections):
                self._threads.start(f"{worker} {number}", partial(self._serve, worker, connect))
        self._threads.join(_JOIN_TIMEOUT_S * (1 + len(self._waiting)))
        fault = "stopped" if self._stopped else "no worker is left"
        while self._waiting:
            self._on_outcome(UploadOutcome(self._waiting.popleft().image, "", None, fault))

    def has_work(self) -> bool:
        """Returns whether an image may still need a worker that connects now."""
        with self._condition:
            return not self._stopped and bool(self._waiting or self._in_progress)

    def stop(self) -> None:
        """Prevents further uploads; those in progress continue."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def _serve(self, worker: str, connect: Callable[[], UploadClient]) -> None:
        """Uploads images over one connection until none is left or the worker is lost; the body of a thread."""
        try:
            client = connect()
        except WorkerLostError as error:
            with self._condition:
                self._lost.setdefault(worker, str(error))
                self._condition.notify_all()
            return
        busy_replies = 0
        with closing(client):
            while (job := self._next(worker)) is not None:
                try:
                    outcome = UploadOutcome(job.image, worker, client.upload(job.image))
                except WorkerBusyError as error:
                    busy_replies += 1
                    is_lost = busy_replies > _MAX_BUSY_REPLIES
                    self._complete(worker, job, lost=str(error) if is_lost else None)
                    if not is_lost:
                        self._pause()
                except WorkerLostError as error:
                    failed = _Job(job.image, job.attempts + 1)
                    fault = f"{_MAX_ATTEMPTS} workers failed on it, the last one because: {error}"
                    gives_up = failed.attempts >= _MAX_ATTEMPTS
                    self._complete(
                        worker, UploadOutcome(job.image, worker, None, fault) if gives_up else failed, lost=str(error)
                    )
                except (SkylaneError, OSError) as error:
                    busy_replies = 0
                    self._complete(worker, UploadOutcome(job.image, worker, None, str(error)))
                else:
                    busy_replies = 0
                    self._complete(worker, outcome)

    def _next(self, worker: str) -> _Job | None:
        """Waits for an image; returns None when all have their outcome, or the worker is lost."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stopped or worker in self._lost or self._waiting or not self._in_progress
            )
            if self._stopped or worker in self._lost or not self._waiting:
                return None
            self._in_progress += 1
            return self._waiting.popleft()

    def _complete(self, worker: str, result: UploadOutcome | _Job, lost: str | None = None) -> None:
        """Reports an outcome, or queues a job again. `lost`: the worker is lost for this reason."""
        with self._condition:
            self._in_progress -= 1
            if lost is not None:  # Before the image is queued, so that no connection to this worker takes it.
                self._lost.setdefault(worker, lost)
            if isinstance(result, _Job):
                self._waiting.appendleft(result)
            elif not self._callback_failed:
                self._callback_failed = True
                self._on_outcome(result)
                self._callback_failed = False
            self._condition.notify_all()

    def _pause(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._stopped, self._busy_pause_s)
