"""A loaded model: its manifest, its card and the engine that runs it."""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter_ns
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from cloud.engines.engine import ClassIds, Engine, Images, Outputs, Precision
from cloud.models.agreement import agreement
from cloud.models.manifest import Manifest
from cloud.models.tuning import Tuning
from cloud.models.warmup_images import pictures
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard
from shared.runtime import malloc

NOT_DETERMINISTIC = "the same picture gave two different answers: dropout or noise is on and cannot be switched off"

_NS_IN_MS = 1_000_000
_STEADY = 0.999  # Of labels: threads may sum in another order from run to run.


class ImagesError(SkylaneError):
    """Images that do not fit a model's input."""


class OutputError(SkylaneError):
    """Answers of a model that are not what its manifest says."""


class InstancesError(SkylaneError):
    """A model that cannot be run several times at once."""


class OutputType(NamedTuple):
    """What a head's numbers are, and the shape of one picture's."""

    dtype: str
    shape: tuple[int, ...]


class Model:
    """A model ready to answer. Used by one thread at a time, unless it `is_reentrant`; close it, or use it in a `with`."""

    def __init__(self, manifest: Manifest, card: ModelCard, engine: Engine) -> None:
        self.manifest = manifest
        sha256 = getattr(engine, "sha256", card.sha256)  # Of a remote model: of what its server says of it.
        self.card = replace(card, engine=engine.name, precision=engine.precision.value, sha256=sha256)
        self._engine = engine
        self._instances: int = getattr(engine, "instances", 1)
        self._notes: tuple[str, ...] = ()
        self._warnings: tuple[str, ...] = ()
        self._given: Mapping[str, OutputType] = {}
        self._tuning = Tuning()
        malloc.give_back()

    def set_identity(self, name: str, version: str, note: str) -> None:
        """Answer under another model's name, as one that was converted from it may; `note` says why."""
        self.card = replace(self.card, name=name, version=version)
        self._notes = (*self._notes, note)

    @property
    def instances(self) -> int:
        """How many batches are to be inferred at a time; at first as many as its engine finds best.

        Raises:
            InstancesError: on being set, where its engine takes one at a time.
        """
        return self._instances

    @instances.setter
    def instances(self, instances: int) -> None:
        if instances > 1 and not self.is_reentrant:
            raise InstancesError(
                f"{self.card.name} runs on {self.engine_name}{' in a process of its own' if self.pid else ''}, one batch "
                f"at a time: leave instances at 1 instead of {instances}, or start replicas"
            )
        self._instances = instances

    @property
    def is_reentrant(self) -> bool:
        """Whether several threads may infer at a time."""
        return getattr(self._engine, "is_reentrant", False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its warm-up found to be wrong with it, a line each."""
        return self._warnings

    @property
    def given(self) -> Mapping[str, OutputType]:
        """What its warm-up found each head to be; none before."""
        return self._given

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels (3) of an image."""
        return (self.card.height, self.card.width, 3)

    @property
    def engine_name(self) -> str:
        """What runs it: a key of `cloud.engines.engine.ENGINES`."""
        return self._engine.name

    @property
    def precision(self) -> Precision:
        """What it computes in."""
        return self._engine.precision

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "gpu:N"."""
        return self._engine.device

    @property
    def pid(self) -> int | None:
        """The number of the process that its engine has to itself now; None where it runs in this one."""
        return getattr(self._engine, "pid", None)

    @property
    def max_batch_size(self) -> int:
        """The most images that go through the model at once."""
        baked = self._engine.batch_size
        return self.manifest.batching.max_size if baked is None else baked

    def predict(self, images: Images) -> ClassIds:
        """The class of every pixel, uint8 N×H×W, of a segmentation; otherwise as `infer`."""
        return self.infer(images)["mask"]

    def infer(self, images: Images) -> Outputs:
        """What the model answers, by the manifest's head, as `cloud.engines.engine.Engine.infer` tells.

        `images`: uint8 N×H×W×3 in the card's layout, of `input_shape`; any N, a batch baked into the graph or
        `batching.max_size` decides how many run at once.

        Raises:
            ImagesError: they have another shape or type.
            InferenceError: the model failed on them.
        """
        if images.ndim != 4 or images.shape[1:] != self.input_shape or images.dtype != np.uint8:  # noqa: PLR2004 - N, H, W, C.
            given = "×".join(map(str, images.shape))
            raise ImagesError(
                f"{self.card.name} takes uint8 N×{self.card.height}×{self.card.width}×3, given {images.dtype} {given}"
            )
        size = self._engine.batch_size or self.manifest.batching.max_size
        if len(images) == size or (len(images) < size and self._engine.batch_size is None):
            return self._run(images)
        parts = [self._part(images[start : start + size], size) for start in range(0, len(images), size)]
        return {head: np.concatenate([part[head] for part in parts]) for head in parts[0]}

    def warm_up(self, runs: int | None = None) -> list[float]:
        """Run on a picture so often, or as often as the manifest says; the milliseconds of each, the first one cold.

        Where several images may run at once, as many full batches follow, which are not in the list: an engine tunes
        itself anew for another size.

        Raises:
            OutputError: its answers are not what its manifest says.
            InferenceError: it failed.
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
        """One line: what runs where, and what is special about it."""
        card = self.card
        told = f"{card.name} {card.version}: {self.manifest.format} on {card.engine} {card.precision}, "
        told += f"{card.height}×{card.width} {card.layout}, {self.device}"
        if self._engine.batch_size is not None:
            one_by_one = ", run one by one" if self._engine.batch_size == 1 else ""
            told += f", batch of {self._engine.batch_size} baked into the graph{one_by_one}"
        elif self.max_batch_size > 1:
            told += f", batches of up to {self.max_batch_size}"
        if self._instances > 1:
            told += f", {self._instances} batches at a time"
        told += "" if card.trained else ", untrained weights"
        return "; ".join((told, *self._notes, *(f"WARNING: {each}" for each in self._warnings)))

    def close(self) -> None:
        """Release memory and devices."""
        self._engine.close()
        malloc.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, batch: Images) -> Outputs:
        """As `Engine.infer`."""
        outputs = self._engine.infer(batch)
        self._tuning.inferred(len(batch))
        return outputs

    def _timed(self, size: int, runs: int) -> list[float]:
        """The milliseconds of each of some runs on one batch of pictures, which must all give the same."""
        images = pictures(self.card.height, self.card.width, size)
        took_ms = []
        last: Outputs = {}
        for _ in range(runs):
            started_ns = perf_counter_ns()
            outputs = self._run(images)
            took_ms.append((perf_counter_ns() - started_ns) / _NS_IN_MS)
            if last and agreement(self.manifest, last, outputs) < _STEADY:
                self._warnings = (NOT_DETERMINISTIC,)
            self._check(outputs, size)
            self._given = {head: OutputType(values.dtype.name, values.shape[1:]) for head, values in outputs.items()}
            last = outputs
        return took_ms

    def _check(self, outputs: Outputs, size: int) -> None:
        """Check that answers to so many pictures fit the manifest, as far as only a run tells.

        Raises:
            OutputError: a head has not one answer a picture, or a mask holds a class that has no name.
        """
        for head, values in outputs.items():
            if values.ndim == 0 or len(values) != size:
                given = "×".join(map(str, values.shape)) or "a single number"
                raise OutputError(
                    f"{self.card.name}: output {head!r} is {given} for {size} pictures: its first side must be theirs"
                )
        named = len(self.manifest.labels)
        highest = int(outputs["mask"].max()) if "mask" in outputs else -1
        if named and highest >= named:
            raise OutputError(
                f"{self.card.name} answers class {highest}, but names only {named}: name all classes in labels"
            )

    def _part(self, images: Images, size: int) -> Outputs:
        """Infer a part of a larger batch; where the size is baked, a short last part is filled up and cut."""
        if self._engine.batch_size is None or len(images) == size:
            return self._run(np.ascontiguousarray(images))
        filled = np.zeros((size, *self.input_shape), np.uint8)
        filled[: len(images)] = images
        return {head: values[: len(images)] for head, values in self._run(filled).items()}
