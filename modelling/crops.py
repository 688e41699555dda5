"""Batches of augmented crops from a frame store, made in their own thread."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from modelling.augmentation import augmented
from modelling.frame_store import FrameStore

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Pictures B×H×W×3 RGB, labels B×H×W.

_TRIES = 3  # Places looked at for a crop; the one with most of what is rare is taken.
_THINNING = 8  # Rows and columns between the pixels looked at for it.


class CropLoader:
    """Yields batches for ever; `value` says of each class how much a pixel of it is worth having in a crop."""

    def __init__(
        self,
        store: FrameStore,
        *,
        batch: int,
        height: int,
        width: int,
        value: npt.NDArray[np.float32],
        seed: int,
        ahead: int = 4,
    ) -> None:
        self._store = store
        self._batch = batch
        self._height = height
        self._width = width
        self._value = value
        self._rng = np.random.default_rng(seed)
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(ahead)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="crops", daemon=True)

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

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self._queue.get()
            if isinstance(batch, BaseException):
                raise batch
            yield batch

    def _fill(self) -> None:
        try:
            while not self._stopping.is_set():
                self._queue.put(self._next())
        except BaseException as error:  # noqa: BLE001  # The loop that takes the batches raises it.
            self._queue.put(error)

    def _next(self) -> Batch:
        places = self._rng.choice(self._store.ready_indices(), self._batch)
        crops = [self._crop(int(place)) for place in places]
        return np.stack([picture for picture, _ in crops]), np.stack([labels for _, labels in crops])

    def _crop(self, index: int) -> Batch:
        whole = self._store.labels[index]
        corners = [
            (self._start(whole.shape[0], self._height), self._start(whole.shape[1], self._width)) for _ in range(_TRIES)
        ]
        top, left = max(corners, key=lambda corner: self._worth(whole, *corner))
        area = (slice(top, top + self._height), slice(left, left + self._width))
        return augmented(self._store.pictures[index][area], whole[area], self._rng)

    def _start(self, whole: int, part: int) -> int:
        """Where a part begins. A fifth of it may hang over and is pushed back: or the borders would hardly be seen."""
        return min(max(int(self._rng.integers(-part // 5, whole - part + part // 5 + 1)), 0), whole - part)

    def _worth(self, labels: npt.NDArray[np.uint8], top: int, left: int) -> float:
        thinned = labels[top : top + self._height : _THINNING, left : left + self._width : _THINNING]
        present = np.bincount(thinned.ravel(), minlength=len(self._value)) > 0
        return float(self._value @ present)
