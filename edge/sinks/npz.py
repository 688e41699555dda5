"""The NumPy sink: raw tensors as `.npz` files."""

import io
import zipfile
from pathlib import Path

import numpy as np

from edge.sinks.files import write_file
from edge.sinks.sink import FrameResult
from shared.messages.model_card import ModelCard
from shared.messages.results import Tensors
from shared.messages.topics import camera_name


class NpzSink:
    """Writes `tensors/<camera>/<index>.npz` with the model's outputs by name, unchanged."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        del card
        self._folder = folder / "tensors"

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        assert isinstance(frame.result, Tensors)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:  # np.savez reserves some names for its options.
            for name, array in frame.result.values.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        path = self._folder / camera_name(frame.camera) / f"{frame.frame_index:06d}.npz"
        write_file(path, packed.getvalue())

    def close(self) -> None:
        """See Sink. Every file is complete already."""
