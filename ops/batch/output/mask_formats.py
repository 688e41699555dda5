"""The formats of masks: files of PNG or NumPy, or a bag with the masks of all frames."""

import io
from pathlib import Path
from typing import Protocol

import numpy as np

from ops.batch.frames import SegmentedFrame
from rosbag_tools.writer import BagWriter
from shared.files import write_file
from shared.imaging import image_codecs
from shared.imaging.codec import Mask
from shared.imaging.geometry import UNSEEN, Geometry, to_source
from shared.messages.topics import CameraNames, result_topic


class MaskTarget(Protocol):
    """Writes the masks of one bag; the methods raise a SkylaneError or an OSError if that fails."""

    def __init__(self, folder: Path) -> None:
        """Opens the files, in the folder of the bag's results."""

    @staticmethod
    def encode(mask: Mask, geometry: Geometry) -> bytes:
        """Encodes a mask of the model's size; called where the model runs."""

    def write(self, frame: SegmentedFrame) -> str:
        """Writes the mask of a frame; returns the path of its file, relative to the folder."""

    def close(self) -> None:
        """Completes the files."""


class _MaskFiles:
    """A file for each mask: `masks/<camera>/<index>`, with the index of the frame in the bag."""

    suffix = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cameras = CameraNames()

    def write(self, frame: SegmentedFrame) -> str:
        """See MaskTarget."""
        path = f"masks/{self._cameras[frame.camera]}/{frame.index:06d}{self.suffix}"
        write_file(self._folder / path, frame.mask, self._folder)
        return path

    def close(self) -> None:
        """See MaskTarget. Every file is complete already."""


class PngMaskFiles(_MaskFiles):
    """8-bit grey PNG files of class ids."""

    suffix = ".png"

    @staticmethod
    def encode(mask: Mask, geometry: Geometry) -> bytes:
        """See MaskTarget."""
        del geometry
        return bytes(image_codecs.encode_mask(mask, "png"))


class NpzMaskFiles(_MaskFiles):
    """Compressed NumPy archives with the array `mask`."""

    suffix = ".npz"

    @staticmethod
    def encode(mask: Mask, geometry: Geometry) -> bytes:
        """See MaskTarget."""
        del geometry
        packed = io.BytesIO()
        np.savez_compressed(packed, mask=mask)
        return packed.getvalue()


class MaskBag:
    """An MCAP bag `masks_bag/`: mono8 images at the size and with the stamps of the frames, on `<camera>/masks`."""

    def __init__(self, folder: Path) -> None:
        self._bag = BagWriter(folder / "masks_bag", "mcap", "zstd")
        self._topics = CameraNames(name_of=result_topic, fold=str)

    @staticmethod
    def encode(mask: Mask, geometry: Geometry) -> bytes:
        """See MaskTarget. The mask gets the size of the frame."""
        return bytes(image_codecs.encode_mask(to_source(mask, geometry, UNSEEN), "rle"))

    def write(self, frame: SegmentedFrame) -> str:
        """See MaskTarget."""
        size = (frame.geometry.source_height, frame.geometry.source_width)
        mask = image_codecs.decode_mask(frame.mask, "rle", size)
        topic = self._topics[frame.camera] + "/masks"
        self._bag.write_image(topic, mask, "mono8", frame.stamp_ns, frame.source_ns, "camera")
        return "masks_bag"

    def close(self) -> None:
        """See MaskTarget."""
        self._bag.close()


MASK_FORMATS: dict[str, type[MaskTarget]] = {"png": PngMaskFiles, "npz": NpzMaskFiles, "bag": MaskBag}
