"""Benchmark of engines: the candidates that can run a model, the reference for its labels, and timing in rounds."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

from cloud.engines.placement import Precision
from cloud.engines.table import readers
from shared.errors import SkylaneError

if TYPE_CHECKING:  # The repository imports the engine selection.
    from cloud.models.manifest import Manifest
    from cloud.models.repository import Repository

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

    model: str
    version: str
    sha256: str  # Hash of the model file.
    engine: str
    precision: Precision

    def label(self, name: str) -> str:
        """The label among the candidates for model `name`, such as "openvino bf16" or "openvino int8 of road-int8"."""
        label = f"{self.engine} {self.precision}"
        return label if self.model == name else f"{label} of {self.model}"


def reference(repository: "Repository", name: str, version: str | None = None) -> Candidate:
    """Returns the reference for the labels of a model: the model that it was converted from, or the model itself.

    It runs on TensorFlow if that reads the file, otherwise on the default engine of the format.

    Raises:
        SkylaneError: the model does not exist, or its manifest is invalid.
    """
    manifest = repository.manifest(name, version)
    source = manifest.converted_from
    if source is not None:
        for candidate, origin in _readable(repository, source.model) if source.model in repository.names() else ():
            if origin.sha256 == source.sha256:
                return _candidate(source.model, candidate, origin, _reference_engine(origin), origin.precision)
    return _candidate(
        name, _version(repository, name, version), manifest, _reference_engine(manifest), manifest.precision
    )


def candidates(repository: "Repository", name: str, version: str | None = None) -> list[Candidate]:
    """Returns all ways to run a model: its file and those of models converted from it, on each engine that reads them.

    Missing libraries and damaged files are found only when a candidate is loaded.

    Raises:
        SkylaneError: the model does not exist, or its manifest is invalid.
    """
    manifest = repository.manifest(name, version)
    found = _candidates_of(name, _version(repository, name, version), manifest)
    for other in repository.names():
        if other == name:
            continue
        for each, converted in _readable(repository, other):
            source = converted.converted_from
            if source is not None and (source.model, source.sha256) == (name, manifest.sha256):
                found.extend(_candidates_of(other, each, converted))
    return found


def turns(keys: Sequence[K], number: int) -> list[K]:
    """Returns the order of `keys` in a round, such that over the rounds each key follows each other one equally often.

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


def _readable(repository: "Repository", name: str) -> Iterator[tuple[str, "Manifest"]]:
    """Yields the versions of a model with valid manifests; `skylane model verify` reports the others."""
    try:
        versions = repository.versions(name)
    except SkylaneError:
        return  # The version of a model with a single version is in its manifest.
    for version in versions:
        try:
            yield version, repository.manifest(name, version)
        except SkylaneError:
            continue


def _candidates_of(name: str, version: str, manifest: "Manifest") -> list[Candidate]:
    return [
        _candidate(name, version, manifest, engine, precision)
        for engine in readers(manifest.format)
        for precision in _precisions(engine, manifest.precision)
    ]


def _precisions(engine: str, of_file: Precision) -> tuple[Precision, ...]:
    return _PRECISIONS.get(engine, (Precision.FP32,)) if of_file is Precision.FP32 else (of_file,)


def _reference_engine(manifest: "Manifest") -> str:
    found = readers(manifest.format)
    return REFERENCE_ENGINE if REFERENCE_ENGINE in found else found[0]


def _version(repository: "Repository", name: str, version: str | None) -> str:
    return version or repository.versions(name)[-1]


def _candidate(name: str, version: str, manifest: "Manifest", engine: str, precision: Precision) -> Candidate:
    return Candidate(name, version, manifest.sha256, engine, precision)
