"""Raw tensors as NumPy files."""

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
    """Writes `tensors/<camera>/<index>.npz`: a model's outputs by name, every number as the model gave it."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        del card
        self._folder = folder / "tensors"

    def write(self, answered: FrameResult) -> None:
        """See Sink."""
        assert isinstance(answered.result, Tensors)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:  # np.savez takes some names for its own options.
            for name, array in answered.result.values.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        path = self._folder / camera_name(answered.camera) / f"{answered.frame_index:06d}.npz"
        write_file(path, packed.getvalue())

    def close(self) -> None:
        """See Sink; every file is whole already."""
