"""`engine: auto`: selects the fastest engine on this host whose labels agree with the reference, and caches the choice."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from cloud.engines.engine import Images, Outputs
from cloud.engines.placement import Placement, Precision
from cloud.models import engine_cache
from cloud.models.agreement import agreement
from cloud.models.engine_benchmark import Candidate, candidates, race, reference
from cloud.models.warmup_images import warmup_images
from shared.errors import SkylaneError
from shared.runtime.machine import machine

if TYPE_CHECKING:  # The repository imports this module.
    from cloud.models.manifest import Manifest
    from cloud.models.model import Model
    from cloud.models.repository import Repository

_IMAGES = 4
_WARM_UP_ROUNDS = 3  # The first runs allocate and tune.
_SLOWDOWN_CUTOFF = 3.0  # Candidates that are slower than the fastest by this factor in the warm-up are not measured.
_ROUNDS = 11


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The selected way to run a model on this host, with the measurements behind it."""

    asked: str  # The requested model.
    model: str  # The model that runs: the requested one, or one converted from it.
    version: str
    engine: str
    precision: Precision
    reference: str  # Example: "tensorflow fp32".
    speed: float  # Relative to the reference, by the medians of the rounds.
    agreement: float  # Share of labels that equal the reference, 0 to 1.
    refused: tuple[str, ...]  # Candidates that were not suitable, with the reason.
    measured: str  # Date, such as 2026-11-21.
    remembered: bool = False  # True if it comes from the cache.

    def __str__(self) -> str:
        """One line for the log."""
        source = "" if self.model == self.asked else f" of {self.model}"
        line = f"engine auto: {self.engine} {self.precision}{source}, {self.speed:.2f}× {self.reference}, "
        line += f"{100 * self.agreement:.3f} % of labels; "
        line += f"remembered from {self.measured}" if self.remembered else "measured now"
        return line + "".join(f"; refused {reason}" for reason in self.refused)


def select_engine(
    repository: "Repository",
    name: str,
    version: str | None = None,
    placement: Placement = Placement(),  # noqa: B008 - frozen.
) -> EngineChoice:
    """Selects the fastest candidate whose agreement with the reference reaches the manifest's `agreement_floor`.

    Args:
        repository: The models.
        name: The model to run.
        version: Its version, by default the highest one.
        placement: The device. If it has a precision, only candidates with that precision are considered.

    Raises:
        SkylaneError: the model does not exist, its reference cannot be loaded, or no candidate agrees with it.
    """
    found = candidates(repository, name, version)
    if placement.precision is not None:
        found = [each for each in found if each.precision is placement.precision]
    floor = repository.manifest(name, version).agreement_floor
    selection = _Selection(name, reference(repository, name, version), found, placement, floor)
    key = selection.key()
    with engine_cache.measurement_lock():  # Replicas that start together would distort the measurements.
        known = selection.from_cache(engine_cache.load(key))
        if known is not None:
            return known
        choice = _measure(repository, selection)
        engine_cache.store(key, asdict(choice))
        return choice


@dataclass(frozen=True, slots=True)
class _Selection:
    """The candidates and the conditions of a selection."""

    asked: str
    reference: Candidate
    candidates: list[Candidate]
    placement: Placement
    floor: float

    def key(self) -> str:
        """The cache key, which depends on host, library versions, files, placement and floor."""
        document = json.dumps({"host": machine(), **asdict(self)}, sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()

    def from_cache(self, fields: Mapping[str, Any] | None) -> EngineChoice | None:
        """Returns the cached choice, or None if it is missing or not one of the candidates."""
        if fields is None:
            return None
        by_key = {(each.model, each.version, each.engine, each.precision): each for each in self.candidates}
        try:
            known = EngineChoice(**fields)
            candidate = by_key[known.model, known.version, known.engine, Precision(known.precision)]
            return replace(
                known,
                precision=candidate.precision,
                speed=float(known.speed),
                agreement=float(known.agreement),
                refused=tuple(map(str, known.refused)),
                remembered=True,
            )
        except (KeyError, TypeError, ValueError):
            return None


def _measure(repository: "Repository", selection: _Selection) -> EngineChoice:
    """Loads all candidates, compares their labels with the reference and measures their speed."""
    held, name = selection.reference, selection.asked
    refused: list[str] = []
    shares: dict[Candidate, float] = {}
    with ExitStack() as opened:
        own = opened.enter_context(_load(repository, held, selection.placement))
        manifest = own.manifest
        shown = warmup_images(manifest.input.height, manifest.input.width, _IMAGES)
        truth = own.infer(shown)
        models: dict[Candidate, Model] = {held: own}
        for candidate in selection.candidates:
            try:
                if candidate != held:
                    models[candidate] = opened.enter_context(_load(repository, candidate, selection.placement))
                share = _share(manifest, own, truth, models[candidate], shown)
                if share < selection.floor:
                    raise SkylaneError(f"{100 * share:.3f} % of labels, floor {100 * selection.floor:g} %")  # noqa: TRY301
            except SkylaneError as error:
                refused.append(f"{candidate.label(name)} ({error})")
            else:
                shares[candidate] = share
        if not shares:
            raise SkylaneError(
                f"model {name}: no engine is suitable: {'; '.join(refused) or 'none has this precision'}"
            )
        runs = {key: partial(models[key].infer, shown[:1]) for key in (held, *(key for key in shares if key != held))}
        warm_ms = {candidate: min(each) for candidate, each in race(runs, _WARM_UP_ROUNDS).items()}
        limit_ms = _SLOWDOWN_CUTOFF * min(warm_ms.values())
        runs = {key: run for key, run in runs.items() if key == held or warm_ms[key] <= limit_ms}
        # The minimum would favour an engine that is fast only once.
        took_ms = {candidate: median(each) for candidate, each in race(runs, _ROUNDS).items()}
    best = min((each for each in shares if each in took_ms), key=lambda candidate: took_ms[candidate])
    return EngineChoice(
        asked=name,
        model=best.model,
        version=best.version,
        engine=best.engine,
        precision=best.precision,
        reference=held.label(name),
        speed=took_ms[held] / took_ms[best],
        agreement=shares[best],
        refused=tuple(refused),
        measured=datetime.now(UTC).date().isoformat(),
    )


def _share(manifest: "Manifest", own: "Model", truth: Outputs, model: "Model", shown: Images) -> float:
    """Returns the share of a candidate's labels that equal the reference.

    Raises:
        SkylaneError: its input shape or its classes differ, or inference failed.
    """
    if model.input_shape != own.input_shape or model.card.labels != own.card.labels:
        raise SkylaneError("its input or its labels differ from those of the reference")
    return agreement(manifest, truth, model.infer(shown))


def _load(repository: "Repository", candidate: Candidate, placement: Placement) -> "Model":
    where = replace(placement, precision=candidate.precision)
    return repository.load(candidate.model, where, version=candidate.version, engine=candidate.engine)
