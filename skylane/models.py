"""Runs models of the repository on this machine: `skylane.Model`."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cloud.models.loader import ModelLoader
from modelling.inspection.image_run import MaskSize, predict
from shared.errors import SkylaneError
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root


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
        loader = ModelLoader(Repository(Path(models or default_root())), Placement(device=device), engine=engine)
        self._model = loader.open(name)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by class id."""
        return self._model.card.labels.names

    def predict(self, image: npt.ArrayLike, *, mask_size: MaskSize = "frame") -> Any:
        """Runs the model on an image, which is resized as the model's card says.

        Args:
            image: RGB, H×W×3 uint8: a NumPy array, or what NumPy converts to one, such as an image of Pillow.
            mask_size: The size of a mask: that of the image (`frame`), or of the model's input (`model`).

        Returns:
            What the model's task decodes: for a segmentation, H×W uint8 class ids (255 where the resize cropped the
            image off); for a detection, Detections in pixels of the image; for a classification, its classes with
            probabilities; for raw tensors, Tensors.

        Raises:
            SkylaneError: the image has another shape or type, or the model failed.
        """
        rgb = np.asarray(image)
        if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8:  # noqa: PLR2004  H, W and colours.
            raise SkylaneError(f"image is {rgb.dtype} of shape {rgb.shape}: give RGB, H×W×3 uint8")
        return predict(self._model, rgb, mask_size).result

    def close(self) -> None:
        """Releases memory and devices."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
