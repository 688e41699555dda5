"""Measuring engines beside each other: what can run a model here, how fast each is, and how far its labels agree."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

from cloud.engines.engine import ENGINES, FORMATS, Precision
from shared.errors import SkylaneError

if TYPE_CHECKING:  # The repository chooses engines by measuring them.
    from cloud.models.manifest import Manifest
    from cloud.models.repository import Repository

K = TypeVar("K", bound=Hashable)

REFERENCE_ENGINE = "tensorflow"

# What each engine can compute an FP32 file in; a file of other numbers is computed in those.
_PRECISIONS = {
    "tensorflow": (Precision.FP32, Precision.BF16),
    "openvino": (Precision.FP32, Precision.BF16, Precision.FP16),
}
_NS_IN_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model's version on an engine, in a precision."""

    model: str
    version: str
    sha256: str  # Of the model's file.
    engine: str
    precision: Precision

    def beside(self, name: str) -> str:
        """What it is called among the candidates for model `name`: "openvino bf16", "openvino int8 of road-int8"."""
        told = f"{self.engine} {self.precision}"
        return told if self.model == name else f"{told} of {self.model}"


def reference(repository: "Repository", name: str, version: str | None = None) -> Candidate:
    """What a model's labels are held against: the model that it was converted from, or itself, in FP32, on TensorFlow.

    A file that TensorFlow does not read runs on its format's own engine.

    Raises:
        SkylaneError: there is no such model, or its manifest is wrong.
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
    """Every way to run a model: its file on each engine that reads it, and each model that was converted from it.

    Whether the libraries are installed, and the files whole, shows when one is loaded.

    Raises:
        SkylaneError: there is no such model, or its manifest is wrong.
    """
    manifest = repository.manifest(name, version)
    found = _of_file(name, _version(repository, name, version), manifest)
    for other in repository.names():
        if other == name:
            continue
        for each, converted in _readable(repository, other):
            source = converted.converted_from
            if source is not None and (source.model, source.sha256) == (name, manifest.sha256):
                found.extend(_of_file(other, each, converted))
    return found


def turns(keys: Sequence[K], number: int) -> list[K]:
    """The order in which to run `keys` in a round, so that over the rounds each follows each other one equally often.

    What runs before leaves warm caches, or threads that still spin: a mere rotation would leave it to the same one
    always. The order is a Williams square's: first, last, second, last but one …, turned by one a round; for an odd
    number of keys every other time round backwards.
    """
    count = len(keys)
    zigzag = [(place // 2 if place % 2 == 0 else count - 1 - place // 2) for place in range(count)]
    turned = [keys[(place + number) % count] for place in zigzag]
    return turned[::-1] if count % 2 and number // count % 2 else turned


def race(
    runs: Mapping[K, Callable[[], object]], rounds: int, on_round: Callable[[], None] = lambda: None
) -> dict[K, list[float]]:
    """The milliseconds of each run in each of some rounds; in a round each runs once, in the order of `turns`."""
    took_ms: dict[K, list[float]] = {key: [] for key in runs}
    for number in range(rounds):
        for key in turns(list(runs), number):
            begun_ns = perf_counter_ns()
            runs[key]()
            took_ms[key].append((perf_counter_ns() - begun_ns) / _NS_IN_MS)
        on_round()
    return took_ms


def _readable(repository: "Repository", name: str) -> Iterator[tuple[str, "Manifest"]]:
    """A model's versions and their manifests, but for broken ones, which `skylane model verify` tells."""
    try:
        versions = repository.versions(name)
    except SkylaneError:
        return  # A model of one version tells it in its manifest.
    for version in versions:
        try:
            yield version, repository.manifest(name, version)
        except SkylaneError:
            continue


def _of_file(name: str, version: str, manifest: "Manifest") -> list[Candidate]:
    readers = [engine for engine, entry in ENGINES.items() if manifest.format in entry.formats]
    return [
        _candidate(name, version, manifest, engine, precision)
        for engine in readers
        for precision in _precisions(engine, manifest.precision)
    ]


def _precisions(engine: str, of_file: Precision) -> tuple[Precision, ...]:
    return _PRECISIONS.get(engine, (Precision.FP32,)) if of_file is Precision.FP32 else (of_file,)


def _reference_engine(manifest: "Manifest") -> str:
    reads = manifest.format in ENGINES[REFERENCE_ENGINE].formats
    return REFERENCE_ENGINE if reads else FORMATS[manifest.format]


def _version(repository: "Repository", name: str, version: str | None) -> str:
    return version or repository.versions(name)[-1]


def _candidate(name: str, version: str, manifest: "Manifest", engine: str, precision: Precision) -> Candidate:
    return Candidate(name, version, manifest.sha256, engine, precision)
