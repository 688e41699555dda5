"""Batches made ahead of the training step that takes them, in a thread of their own."""

import queue
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class BatchLoader(ABC, Generic[T]):
    """Gives batches by `next`, for ever, while it is entered; `ahead`: at most so many wait to be taken."""

    def __init__(self, name: str, ahead: int = 4) -> None:
        self._queue: queue.Queue[T | BaseException] = queue.Queue(ahead)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._fill, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.1)  # Room for a thread that waits to put its last batch.
            except queue.Empty:
                self._thread.join(timeout=0.1)

    def __next__(self) -> T:
        batch = self._queue.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    @abstractmethod
    def _next(self) -> T:
        """Make a batch; runs in the loader's thread."""

    def _fill(self) -> None:
        try:
            while not self._stopping.is_set():
                self._queue.put(self._next())
        except BaseException as error:  # noqa: BLE001  # The loop that takes the batches raises it.
            self._queue.put(error)
