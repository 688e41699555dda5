"""An engine that returns the precomputed answers of a stored model, and takes a fixed time for each image.

It stands for a server with a large model, so that several servers can be measured on a machine that has fewer cores. The
answers are computed in advance by the model itself, for the images that a vehicle will send.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cloud.models.loader import ModelLoader
from ops.processes.child import Child, reply
from ops.processes.child import settings as child_settings
from ops.processes.playback import PlaybackSettings, model_inputs
from shared.files import new_file
from shared.imaging.frames import Pixels
from shared.inference.engine import Engine, Images, Outputs
from shared.inference.model import Model, open_stored
from shared.inference.table import ENGINES
from shared.models.manifest import Manifest, Precision
from shared.models.repository import Repository

_DIGESTS = "digests"  # The array of a file with answers that identifies the images.
_DIGEST_BYTES = 16
_TIMEOUT_S = 3600.0  # Timeout of computing the answers for one bag.


class KnownAnswers:
    """Outputs of a model by image."""

    def __init__(self, outputs: Mapping[bytes, Mapping[str, npt.NDArray[Any]]]) -> None:
        """`outputs`: the outputs without the batch axis, by `digest` of the image."""
        self._outputs = dict(outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    @classmethod
    def compute(cls, model: Model, images: Iterable[Pixels], on_image: Callable[[int], None] = lambda _: None) -> Self:
        """Runs the model on every image; `on_image` receives the number of images so far."""
        outputs = {}
        for number, image in enumerate(images, 1):
            outputs[digest(image)] = model.infer_one(np.asarray(image, np.uint8))
            on_image(number)
        return cls(outputs)

    @classmethod
    def read(cls, files: Sequence[Path]) -> Self:
        """Reads the answers of all files that `write` has written."""
        outputs = {}
        for file in files:
            with np.load(file) as stored:
                arrays = dict(stored)
            keys = [row.tobytes() for row in arrays.pop(_DIGESTS)]
            outputs.update(
                {key: {head: values[row] for head, values in arrays.items()} for row, key in enumerate(keys)}
            )
        return cls(outputs)

    def write(self, path: Path) -> None:
        """Writes the answers into a file for NumPy."""
        keys = np.frombuffer(b"".join(self._outputs), np.uint8).reshape(-1, _DIGEST_BYTES)
        heads = next(iter(self._outputs.values()), {})
        arrays = {head: np.stack([each[head] for each in self._outputs.values()]) for head in heads}
        with new_file(path) as file:
            np.savez(file, allow_pickle=False, **{_DIGESTS: keys}, **arrays)

    def of(self, image: Pixels) -> Mapping[str, npt.NDArray[Any]] | None:
        """Returns the outputs for an image; None if they are not known."""
        return self._outputs.get(digest(image))


class FixedTimeEngine:
    """An engine that looks up answers, and takes the same time for each image."""

    name = "fixed-time"
    device = "cpu"
    precision = Precision.FP32
    batch_size = 1

    def __init__(self, answers: KnownAnswers, inference_ms: float, open_model: Callable[[], Model]) -> None:
        """`open_model` opens the model itself, which answers images that are not known; it is then called once."""
        self._answers = answers
        self._inference_s = inference_ms / 1e3
        self._open_model = open_model
        self._model: Model | None = None

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        end_s = time.monotonic() + self._inference_s * len(batch)
        outputs = self._look_up(batch)
        time.sleep(max(0.0, end_s - time.monotonic()))
        return outputs

    def close(self) -> None:
        """See `shared.inference.engine.Engine.close`."""
        if self._model is not None:
            self._model.close()

    def _look_up(self, batch: Images) -> Outputs:
        known = [self._answers.of(image) for image in batch]
        answers = [answer for answer in known if answer is not None]
        if len(answers) == len(batch):
            return {head: np.stack([answer[head] for answer in answers]) for head in answers[0]}
        if self._model is None:
            self._model = self._open_model()
        return self._model.infer(batch)


def open_fixed_time(models: Path, model: str, answers: Sequence[Path], inference_ms: float) -> Model:
    """Opens a model of the repository `models` on a FixedTimeEngine with the answers of these files.

    Raises:
        SkylaneError: the model does not exist, or its file is damaged.
    """
    repository = Repository(models)

    def open_engine(_: str, __: Path, ___: Manifest) -> Engine:
        return FixedTimeEngine(KnownAnswers.read(answers), inference_ms, lambda: ModelLoader(repository).open(model))

    return open_stored(repository.find(model), ENGINES, open_engine)


def known_answers_file(
    settings: PlaybackSettings, model: Model, folder: Path, on_image: Callable[[int], None] = lambda _: None
) -> Path:
    """Returns the file with a model's answers for the bag's frames as a vehicle sends them; computes it if it is missing.

    The file in `folder` is named after everything that its images depend on: the bag, the number of frames, the encoding, the
    resize and the model's hash.
    """
    bag = f"{settings.bag.resolve()} {settings.bag.stat().st_mtime_ns}".encode()
    encoding = f"{settings.codec}-{settings.quality}-{settings.resize or model.card.resize}-{settings.resize_at}"
    place = hashlib.blake2b(bag, digest_size=4).hexdigest()
    file = folder / f"{settings.bag.name}-{place}-{settings.frames}-{encoding}-{model.card.sha256[:12]}.npz"
    if not file.exists():
        KnownAnswers.compute(model, model_inputs(settings, model), on_image).write(file)
    return file


def answers_file(settings: PlaybackSettings, folder: Path) -> Path:
    """Returns `known_answers_file` of a model of the repository, which a child process opens.

    TensorFlow would keep memory and threads in this process.

    Raises:
        SkylaneError: the model cannot be loaded, or the bag has no readable frame.
    """
    names = ("bag", "models", "model", "codec", "quality", "frames", "resize", "resize_at")
    values = {name: getattr(settings, name) for name in names}
    with Child(__name__, {"playback": values, "folder": folder}, title="computing the answers of the model") as child:
        return Path(child.wait(_TIMEOUT_S))


def digest(image: Pixels) -> bytes:
    """Identifies an image by its pixels."""
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=_DIGEST_BYTES).digest()


def main(*, playback: dict[str, Any], folder: str) -> None:
    """Computes the answers of a model unless their file exists; replies with its path."""
    paths = {name: Path(playback[name]) for name in ("bag", "models")}
    settings = PlaybackSettings(**(playback | paths))
    model = ModelLoader(Repository(settings.models)).open(settings.model)
    reply(str(known_answers_file(settings, model, Path(folder))))


if __name__ == "__main__":
    main(**child_settings())
