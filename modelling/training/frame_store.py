"""A folder of memory-mapped arrays with images and their true class ids, filled by several processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FrameStore:
    """Images, labels, and a flag per frame that both are written."""

    pictures: npt.NDArray[np.uint8]  # N×H×W×3 RGB.
    labels: npt.NDArray[np.uint8]  # N×H×W class ids.
    ready: npt.NDArray[np.uint8]  # N, 0 or 1.

    @classmethod
    def create(cls, folder: Path, count: int, height: int, width: int) -> Self:
        """Creates an empty store in `folder`, replacing an existing one."""
        folder.mkdir(parents=True, exist_ok=True)
        shapes = {"pictures": (count, height, width, 3), "labels": (count, height, width), "ready": (count,)}
        return cls(
            **{
                name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.uint8, shape=shape)
                for name, shape in shapes.items()
            }
        )

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the store in `folder` for reading and writing."""
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r+") for name in ("pictures", "labels", "ready")
        }
        return cls(**arrays)

    def put(self, index: int, picture: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> None:
        """Writes one image H×W×3 and its labels H×W."""
        self.pictures[index] = picture
        self.labels[index] = labels
        self.ready[index] = 1

    def ready_indices(self) -> npt.NDArray[np.intp]:
        """Returns the indices of the frames that are complete."""
        return np.flatnonzero(self.ready)
