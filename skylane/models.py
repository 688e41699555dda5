"""Runs models of the repository on this machine: `skylane.Model`."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt

from cloud.models.loader import ModelLoader
from modelling.inspection.image_run import MaskSize, predict
from shared.errors import SkylaneError
from shared.imaging.image_files import ImageArray, read_image_file
from shared.inference.model import Model
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root
from skylane.arguments import ArgumentError, path_argument, text_argument


class ModelClosedError(SkylaneError):
    """A model was used after it had been closed."""


class ImageModel:
    """A model that is loaded in this process, public as `skylane.Model`; a context manager that closes it.

        with skylane.Model("road-small") as model:
            class_ids = model.predict(image)

    One thread at a time may use it.
    """

    def __init__(
        self, name: str, *, engine: str | None = None, device: str = "auto", models: Path | str | None = None
    ) -> None:
        """Loads a model.

        Args:
            name: Its name in the repository, as in `skylane model list`.
            engine: The engine that runs it, a built-in one or a plug-in; None: as its manifest says.
            device: auto, cpu or gpu:N.
            models: Folder of the repository; None: SKYLANE_MODELS, or the user's models and the shipped ones.

        Raises:
            SkylaneError: there is no such model, engine or device, or the library of the engine is not installed.
        """
        text_argument("name", name, "give the name of a model, as in 'skylane model list'")
        text_argument("device", device, "give auto, cpu or gpu:N")
        if engine is not None:
            text_argument("engine", engine, "give the name of an engine, as in 'skylane model bench', or None")
        root = default_root() if models is None else path_argument("models", models, "a model repository")
        self._open: Model | None = ModelLoader(Repository(root), Placement(device=device), engine=engine).open(name)
        self._name = name
        self._class_names = self._open.card.labels.names

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by class id."""
        return self._class_names

    @property
    def _model(self) -> Model:
        if self._open is None:
            raise ModelClosedError(f"model {self._name} is closed: open it again with skylane.Model({self._name!r})")
        return self._open

    def predict(self, image: npt.ArrayLike | Path | str, *, mask_size: MaskSize = "frame") -> Any:
        """Runs the model on an image, which is resized as the model's card says.

        Args:
            image: RGB, H×W×3 uint8: a NumPy array, or what NumPy converts to one, such as an image of Pillow; or the path of a
                JPEG or PNG file.
            mask_size: The size of a mask: that of the image (`frame`), or of the model's input (`model`).

        Returns:
            What the model's task decodes: for a segmentation, H×W uint8 class ids (255 where the resize cropped the
            image off); for a detection, Detections in pixels of the image; for a classification, its classes with
            probabilities; for raw tensors, Tensors.

        Raises:
            SkylaneError: the image has another shape or type, the model is closed, or it failed.
        """
        if not isinstance(mask_size, str) or mask_size not in get_args(MaskSize):
            raise ArgumentError("mask_size", mask_size, f"give {' or '.join(get_args(MaskSize))}")
        return predict(self._model, _rgb(image), mask_size).result

    def close(self) -> None:
        """Releases memory and devices; closing it again does nothing."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _rgb(image: Any) -> ImageArray:
    """Returns an image as an array; raises an ArgumentError if it is none."""
    if image is None:
        raise ArgumentError(
            "image", image, "give RGB, H×W×3 uint8; OpenCV's imread returns None for a file that it cannot read"
        )
    if isinstance(image, str | os.PathLike):
        return read_image_file(path_argument("image", image, "a JPEG or PNG file"))
    try:
        rgb = np.asarray(image)
    except Exception as error:  # Such as of lists of different lengths, or of an array on a GPU.
        raise ArgumentError("image", image, "give RGB, H×W×3 uint8") from error
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8 or not rgb.size:  # H, W and colours.
        raise SkylaneError(f"image is {rgb.dtype} of shape {rgb.shape}: give RGB, H×W×3 uint8")
    return rgb
