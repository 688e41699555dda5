"""Pictures with their true class ids in a folder of memory-mapped arrays, filled by several processes at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FrameStore:
    """`pictures` N×H×W×3 uint8 RGB, `labels` N×H×W uint8 class ids, `ready` N uint8: 1 where both are written."""

    pictures: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]
    ready: npt.NDArray[np.uint8]

    @classmethod
    def create(cls, folder: Path, count: int, height: int, width: int) -> Self:
        """An empty store in `folder`; what was there is lost."""
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
        """The store in `folder`, to read and to fill further."""
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r+") for name in ("pictures", "labels", "ready")
        }
        return cls(**arrays)

    def put(self, index: int, picture: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> None:
        """Write one picture H×W×3 and its labels H×W."""
        self.pictures[index] = picture
        self.labels[index] = labels
        self.ready[index] = 1

    def ready_indices(self) -> npt.NDArray[np.intp]:
        """Where frames can be read by now."""
        return np.flatnonzero(self.ready)
