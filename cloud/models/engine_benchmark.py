"""Benchmark of engines: the candidates that can run a model, the reference for its labels, and timing in rounds."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import TypeVar

from cloud.models.opening import open_model
from shared.inference.model import Model
from shared.inference.table import readers
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository, StoredModel

K = TypeVar("K", bound=Hashable)

REFERENCE_ENGINE = "tensorflow"

# The precisions in which an engine can run an FP32 file; other files run in their own precision.
_PRECISIONS = {
    "tensorflow": (Precision.FP32, Precision.BF16),
    "openvino": (Precision.FP32, Precision.BF16, Precision.FP16),
}
_NS_IN_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version of a model on an engine, in a precision."""

    stored: StoredModel
    engine: str
    precision: Precision

    def __str__(self) -> str:
        return f"{self.stored.name} {self.stored.version} on {self.engine} {self.precision}"

    def label(self, name: str) -> str:
        """The label among the candidates for model `name`, such as "openvino bf16" or "openvino int8 of road-int8"."""
        label = f"{self.engine} {self.precision}"
        return label if self.stored.name == name else f"{label} of {self.stored.name}"

    def open(self, placement: Placement, max_batch: int | None = None) -> Model:
        """Opens the model on a device; see `cloud.models.opening.open_model`."""
        return open_model(self.stored, self.engine, replace(placement, precision=self.precision), max_batch)


def reference(repository: Repository, stored: StoredModel) -> Candidate:
    """Returns the reference for the labels of a model: the model that it was converted from, or the model itself.

    It runs on TensorFlow if that reads the file, otherwise on the default engine of the format.
    """
    origin = repository.source(stored) or stored
    engines = readers(origin.manifest.format)
    engine = REFERENCE_ENGINE if REFERENCE_ENGINE in engines else engines[0]
    return Candidate(origin, engine, origin.manifest.precision)


def candidates(repository: Repository, stored: StoredModel) -> list[Candidate]:
    """Returns all ways to run a model: its file and those of models converted from it, on each engine that reads them.

    Missing libraries and damaged files are found only when a candidate is opened.
    """
    return [
        Candidate(each, engine, precision)
        for each in (stored, *repository.conversions(stored))
        for engine in readers(each.manifest.format)
        for precision in _precisions(engine, each.manifest.precision)
    ]


def turns(keys: Sequence[K], number: int) -> list[K]:
    """Returns the order of `keys` in round `number`, counted from 0.

    In `len(keys)` rounds (in twice as many for an odd number of keys), each key follows each other one equally often.

    A run leaves warm caches and spinning threads to the next one, and a simple rotation would leave them always to the
    same one. The order is that of a Williams square: first, last, second, last but one …, rotated by one each round; for
    an odd number of keys, every other cycle is reversed.
    """
    count = len(keys)
    zigzag = [(index // 2 if index % 2 == 0 else count - 1 - index // 2) for index in range(count)]
    rotated = [keys[(index + number) % count] for index in zigzag]
    return rotated[::-1] if count % 2 and number // count % 2 else rotated


def race(
    runs: Mapping[K, Callable[[], object]], rounds: int, on_round: Callable[[], None] = lambda: None
) -> dict[K, list[float]]:
    """Returns the milliseconds of each run in each round; in a round, each runs once, in the order of `turns`."""
    took_ms: dict[K, list[float]] = {key: [] for key in runs}
    for number in range(rounds):
        for key in turns(list(runs), number):
            start_ns = perf_counter_ns()
            runs[key]()
            took_ms[key].append((perf_counter_ns() - start_ns) / _NS_IN_MS)
        on_round()
    return took_ms


def _precisions(engine: str, of_file: Precision) -> tuple[Precision, ...]:
    return _PRECISIONS.get(engine, (Precision.FP32,)) if of_file is Precision.FP32 else (of_file,)
