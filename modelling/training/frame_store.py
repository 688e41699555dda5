"""Folders of memory-mapped arrays with images and their ground truth, and the threads that load batches from them."""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class ArrayStore:
    """The base of records whose fields are arrays in one folder, each in a file of its name."""

    pictures: npt.NDArray[np.uint8]  # N×H×W×3 RGB.

    @classmethod
    def create(cls, folder: Path, **arrays: tuple[type[np.generic], tuple[int, ...]]) -> Self:
        """Creates a store of zeros in `folder`, replacing an existing one; `arrays` are dtype and shape by field."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, (dtype, shape) in arrays.items():
            np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the store in `folder` for reading and writing."""
        arrays: dict[str, Any] = {
            field.name: np.load(folder / f"{field.name}.npy", mmap_mode="r+") for field in fields(cls)
        }
        return cls(**arrays)


@dataclass(frozen=True, slots=True)
class FrameStore(ArrayStore):
    """Images and their true class ids."""

    labels: npt.NDArray[np.uint8]  # N×H×W class ids.


def render_all(
    render: Callable[[Path, int, View], None], folder: Path, views: Sequence[View], processes: int = 2
) -> None:
    """Calls `render(folder, index, view)` for every view, in several processes."""
    # A forked process would inherit locks held by TensorFlow's threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for _ in pool.map(partial(render, folder), range(len(views)), views, chunksize=6):
            pass  # Raises the error of a failed view.


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
