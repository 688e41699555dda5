"""A loaded model: its manifest, card and engine, its warm-up, its agreement with another one, and how it is opened."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from shared.config import ConfigError
from shared.errors import SkylaneError
from shared.imaging.image_files import read_image_file
from shared.imaging.opencv import cv2
from shared.inference.engine import ClassIds, Engine, Images, Outputs
from shared.inference.table import ENGINES, EngineEntry, choose_engine, formats_of, local_engines
from shared.messages.model_card import ModelCard
from shared.models.manifest import MANIFEST_NAME, BatchingSection, Manifest, Placement, Precision
from shared.models.repository import StoredModel
from shared.registry import load
from shared.runtime import memory
from shared.task import task_named
from shared.tasks.tensors import differences

NOT_DETERMINISTIC = "the same image gave two different results: dropout or noise is active and cannot be switched off"

_NS_IN_MS = 1_000_000
_MIN_AGREEMENT = 0.999  # Two runs may differ, because threads sum in different orders.


class OutputType(NamedTuple):
    """The dtype of an output, and its shape without the batch."""

    dtype: str
    shape: tuple[int, ...]


class Model:
    """A loaded model, and a context manager that closes it. Not thread-safe unless `is_reentrant`."""

    def __init__(self, manifest: Manifest, card: ModelCard, engine: Engine) -> None:
        self.manifest = manifest
        sha256 = getattr(engine, "sha256", card.sha256)  # A remote engine has the hash of the metadata of its server.
        self.card = replace(card, engine=engine.name, precision=engine.precision.value, sha256=sha256)
        self._engine = engine
        self._instances: int = getattr(engine, "instances", 1)
        self._notes: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()  # Problems that the warm-up found, one line each.
        self.output_types: Mapping[str, OutputType] = {}  # Keys are the names of the outputs; empty before the warm-up.
        self._tuned_sizes: set[int] = set()
        memory.trim()

    def set_identity(self, name: str, version: str, note: str) -> None:
        """Serves under the name of the model that it was converted from; `note` is added to the description."""
        self.card = replace(self.card, name=name, version=version)
        self._notes = (*self._notes, note)

    @property
    def instances(self) -> int:
        """Number of batches that run at the same time; the default comes from the engine.

        Raises:
            SkylaneError: when set, if the engine can run only one.
        """
        return self._instances

    @instances.setter
    def instances(self, instances: int) -> None:
        if instances > 1 and not self.is_reentrant:
            raise SkylaneError(
                f"{self.card.name} runs on {self.engine_name}{' in a separate process' if self.pid else ''}, one batch "
                f"at a time: set instances to 1 instead of {instances}, or start several workers"
            )
        self._instances = instances

    @property
    def is_reentrant(self) -> bool:
        """True if several threads may infer at the same time."""
        return getattr(self._engine, "is_reentrant", False)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels (3) of an image."""
        return (self.card.height, self.card.width, 3)

    @property
    def engine_name(self) -> str:
        """A key of `shared.inference.table.ENGINES`."""
        return self._engine.name

    @property
    def precision(self) -> Precision:
        """The precision of the computation."""
        return self._engine.precision

    @property
    def device(self) -> str:
        """The device: "cpu" or "gpu:N"."""
        return self._engine.device

    @property
    def pid(self) -> int | None:
        """The id of the process of an isolated engine; None if it runs in this process."""
        return getattr(self._engine, "pid", None)

    @property
    def max_batch_size(self) -> int:
        """The largest number of images in a batch."""
        fixed = self._engine.batch_size
        return self.manifest.batching.max_size if fixed is None else fixed

    def predict(self, images: Images) -> ClassIds:
        """Returns the class of every pixel of a segmentation: uint8 N×H×W. See `infer`."""
        return self.infer(images)["mask"]

    def infer(self, images: Images) -> Outputs:
        """Returns the outputs of the model by name, see `shared.inference.engine.Engine.infer`.

        Args:
            images: uint8 N×H×W×3 in the layout of the card. N is not limited: larger arrays run in several batches.

        Raises:
            SkylaneError: shape or type is wrong.
            InferenceError: the model failed.
        """
        if images.ndim != 4 or images.shape[1:] != self.input_shape or images.dtype != np.uint8:  # N, H, W, C.
            given = "×".join(map(str, images.shape))
            raise SkylaneError(
                f"{self.card.name} needs uint8 N×{self.card.height}×{self.card.width}×3, got {images.dtype} {given}"
            )
        size = self._engine.batch_size or self.manifest.batching.max_size
        if len(images) == size or (len(images) < size and self._engine.batch_size is None):
            return self._run(images)
        parts = [self._part(images[start : start + size], size) for start in range(0, len(images), size)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def infer_one(self, image: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Returns the outputs for one image, uint8 H×W×3, without the axis of the batch. See `infer`."""
        outputs = self.infer(np.ascontiguousarray(image)[np.newaxis])
        return {name: values[0] for name, values in outputs.items()}

    def warm_up(self, runs: int | None = None) -> list[float]:
        """Runs the smallest batch `runs` times, by default as given in the manifest; returns the milliseconds of each.

        The same number of full batches follow, because an engine tunes itself for each batch size.

        Raises:
            SkylaneError: the outputs contradict the manifest.
            InferenceError: the model failed.
        """
        runs = self.manifest.warm_up.runs if runs is None else runs
        smallest = self._engine.batch_size or 1
        took_ms = self._timed(smallest, runs)
        if self.max_batch_size > smallest:
            self._timed(self.max_batch_size, runs)
        if took_ms:
            self.card = replace(self.card, cold_ms=took_ms[0], warm_ms=took_ms[-1])
        return took_ms

    def describe(self) -> str:
        """Returns a one-line description for the log."""
        card = self.card
        line = f"{card.name} {card.version}: {self.manifest.format} on {card.engine} {card.precision}, "
        line += f"{card.height}×{card.width} {card.layout}, {self.device}"
        if self._engine.batch_size is not None:
            one_by_one = ", run one by one" if self._engine.batch_size == 1 else ""
            line += f", fixed batch of {self._engine.batch_size}{one_by_one}"
        elif self.max_batch_size > 1:
            line += f", batches of up to {self.max_batch_size}"
        if self._instances > 1:
            line += f", {self._instances} batches at a time"
        line += "" if card.trained else ", untrained weights"
        return "; ".join((line, *self._notes, *(f"WARNING: {each}" for each in self.warnings)))

    def close(self) -> None:
        """Releases memory and devices."""
        self._engine.close()
        memory.trim()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, batch: Images) -> Outputs:
        outputs = self._engine.infer(batch)
        if len(batch) not in self._tuned_sizes:  # An engine tunes itself for a new size and needs much memory for that.
            self._tuned_sizes.add(len(batch))
            memory.trim()
        return outputs

    def _timed(self, size: int, runs: int) -> list[float]:
        """Runs the same batch several times, checks its outputs and returns the milliseconds of each run."""
        images = warmup_images(self.card.height, self.card.width, size)
        took_ms = []
        last: Outputs = {}
        for _ in range(runs):
            start_ns = perf_counter_ns()
            outputs = self._run(images)
            took_ms.append((perf_counter_ns() - start_ns) / _NS_IN_MS)
            if last and agreement(self.manifest, last, outputs) < _MIN_AGREEMENT:
                self.warnings = (NOT_DETERMINISTIC,)
            self._check(outputs, size)
            self.output_types = {
                name: OutputType(values.dtype.name, values.shape[1:]) for name, values in outputs.items()
            }
            last = outputs
        return took_ms

    def _check(self, outputs: Outputs, size: int) -> None:
        """Checks the outputs for `size` images.

        Raises:
            SkylaneError: an output is missing, of another type, or does not have `size` rows, or a mask has a class without a
                name.
        """
        heads = {name: head.dtype for name, head in task_named(self.card.task).heads.items()}
        is_mapping = isinstance(outputs, Mapping)
        found = outputs if is_mapping else {"": outputs}
        types = {name: str(getattr(values, "dtype", type(values).__name__)) for name, values in found.items()}
        if not is_mapping or {name: types.get(name) for name in heads} != heads:
            raise SkylaneError(
                f"{self.card.name}: engine {self._engine.name} returns {types}, where the task {self.card.task} has {heads}"
            )
        for name, values in outputs.items():
            if values.ndim == 0 or len(values) != size:
                given = "×".join(map(str, values.shape)) or "a single number"
                raise SkylaneError(
                    f"{self.card.name}: output {name!r} is {given} for {size} images: its first dimension must be {size}"
                )
        named = len(self.manifest.labels)
        highest = int(outputs["mask"].max()) if "mask" in outputs else -1
        if named and highest >= named:
            raise SkylaneError(
                f"{self.card.name} answers class {highest}, but names only {named}: name all classes in labels"
            )

    def _part(self, images: Images, size: int) -> Outputs:
        """Infers a part of a larger array; pads a short last part if the engine has a fixed batch size."""
        if self._engine.batch_size is None or len(images) == size:
            return self._run(np.ascontiguousarray(images))
        padded = np.zeros((size, *self.input_shape), np.uint8)
        padded[: len(images)] = images
        return {name: values[: len(images)] for name, values in self._run(padded).items()}


class AgreementError(SkylaneError):
    """Outputs that cannot be compared."""


def agreement(manifest: Manifest, reference: Outputs, given: Outputs) -> float:
    """Returns the share of labels in `given` that equal the reference, 0 to 1; both are outputs for N images.

    A segmentation is compared by the class of each pixel, a classification by the most probable class of each image. In
    a detection, the share is the number of matched objects in both over the number of all objects. Tensors are compared
    by each number, within a tolerance; the worst tensor counts.

    Raises:
        AgreementError: names or shapes of the outputs differ.
    """
    _check_comparable(reference, given)
    return task_named(manifest.task).agreement(reference, given, manifest)


def largest_difference(reference: Outputs, given: Outputs) -> float:
    """Returns the largest difference of two corresponding numbers over all outputs.

    Raises:
        AgreementError: names or shapes of the outputs differ.
    """
    _check_comparable(reference, given)
    return max(float(np.max(differences(reference[name], given[name]), initial=0.0)) for name in reference)


def _check_comparable(reference: Outputs, given: Outputs) -> None:
    wanted, found = ({name: values.shape for name, values in sorted(outputs.items())} for outputs in (reference, given))
    if wanted != found:
        actual, expected = (
            ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items())[:200]
            for shapes in (found, wanted)
        )
        raise AgreementError(f"its outputs are {actual}, those of the reference {expected}: the models are different")


_STREETS = Path(__file__).resolve().parent / "streets"
_SHIFT = 40  # Columns by which the frames are moved each time they are repeated.


def warmup_images(height: int, width: int, count: int) -> Images:
    """Returns different images: uint8 count×height×width×3, RGB."""
    scaled = [cv2.resize(street, (width, height), interpolation=cv2.INTER_AREA) for street in _streets()]
    rounds = [np.roll(scaled[number % len(scaled)], number // len(scaled) * _SHIFT, axis=1) for number in range(count)]
    return np.stack(rounds).astype(np.uint8, copy=False)


@cache
def _streets() -> list[Images]:
    paths = sorted(_STREETS.glob("*.jpg"))
    assert paths, f"{_STREETS} has no images: the package is incomplete"
    return [read_image_file(path) for path in paths]


OpenEngine = Callable[[str, Path, Manifest], Engine]  # A key of the table of engines, the model file, its manifest.


def open_stored(
    stored: StoredModel,
    engines: Mapping[str, EngineEntry],
    open_engine: OpenEngine,
    *,
    engine: str | None = None,
    max_batch: int | None = None,
) -> Model:
    """Checks the file of a model and opens it on one of `engines`, without warm-up.

    Args:
        stored: The model.
        engines: The engines to choose from.
        open_engine: Opens the chosen engine.
        engine: The engine; None for the default of the format.
        max_batch: The largest batch, instead of the manifest's.

    Raises:
        ConfigError: the manifest names an unknown format, or an engine that cannot read it.
        EngineError: the file cannot be run as the manifest describes.
        DeviceError: the device does not exist.
        SkylaneError: the engine does not read the format, or see `StoredModel.card` and `StoredModel.file`.
    """
    chosen = _chosen(stored, engines, engine)
    card, path = stored.card(), stored.file()
    manifest = stored.manifest.with_labels(card.labels)  # The warm-up checks the classes against the labels.
    if max_batch is not None:
        manifest = manifest.model_copy(update={"batching": BatchingSection(max_size=max_batch)})
    opened = open_engine(chosen, path, manifest)
    try:
        stored.check_hash(path)  # The file may have been replaced while it was being opened.
    except SkylaneError:
        opened.close()
        raise
    return Model(manifest, card, opened)


def open_local(stored: StoredModel, placement: Placement) -> Model:
    """Opens a model on an engine that a vehicle can use; see `open_stored`.

    Raises:
        MissingExtraError: the library of the engine is not installed.
    """

    def open_engine(name: str, path: Path, manifest: Manifest) -> Engine:
        opened: Engine = load("engine", ENGINES, name)(path, manifest, placement)
        return opened

    return open_stored(stored, local_engines(stored.manifest.engine), open_engine)


def _chosen(stored: StoredModel, engines: Mapping[str, EngineEntry], engine: str | None) -> str:
    form = stored.manifest.format
    try:
        return choose_engine(engines, form, engine)
    except SkylaneError as error:
        if form not in formats_of(engines):
            raise ConfigError(stored.folder / MANIFEST_NAME, str(error), "format") from error
        if engine == stored.manifest.engine:
            raise ConfigError(stored.folder / MANIFEST_NAME, str(error), "engine") from error
        raise
