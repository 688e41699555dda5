"""The base of loaders that prepare training batches in a background thread."""

import queue
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class BatchLoader(ABC, Generic[T]):
    """A context manager whose `next` returns an endless series of batches, prepared up to `ahead` batches in advance."""

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
                self._queue.get(timeout=0.1)  # The thread may be waiting to put its last batch.
            except queue.Empty:
                self._thread.join(timeout=0.1)

    def __next__(self) -> T:
        batch = self._queue.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    @abstractmethod
    def _next(self) -> T:
        """Prepares a batch; runs in the loader's thread."""

    def _fill(self) -> None:
        try:
            while not self._stopping.is_set():
                self._queue.put(self._next())
        except BaseException as error:  # noqa: BLE001  # `__next__` raises it in the training thread.
            self._queue.put(error)
