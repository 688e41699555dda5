"""`engine: auto`: the fastest engine on this host whose labels are the reference's, measured once and remembered."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from cloud.engines.engine import Images, Outputs, Placement, Precision
from cloud.models import engine_cache
from cloud.models.agreement import agreement
from cloud.models.engine_benchmark import Candidate, candidates, race, reference
from cloud.models.warmup_images import warmup_images
from shared.errors import SkylaneError
from shared.runtime.machine import machine

if TYPE_CHECKING:  # The repository loads by what is chosen here.
    from cloud.models.manifest import Manifest
    from cloud.models.model import Model
    from cloud.models.repository import Repository

_PICTURES = 4
_WARM_UP = 3  # Runs of each before the rounds: the first ones allocate and tune.
_HOPELESS = 3.0  # Times the fastest of those: what is slower by so much is not run in the rounds.
_ROUNDS = 11


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What runs a model on this host, and why."""

    asked: str  # The model that was asked for.
    model: str  # The one that runs: itself, or one that was converted from it.
    version: str
    engine: str
    precision: Precision
    reference: str  # "tensorflow fp32"
    speed: float  # Times the reference's, by the medians of rounds in turn.
    agreement: float  # Of labels with the reference, 0 to 1.
    refused: tuple[str, ...]  # Candidates that could not be taken, with the reason.
    measured: str  # The day, as 2026-11-21.
    remembered: bool = False

    def __str__(self) -> str:
        """The line that tells it."""
        own = "" if self.model == self.asked else f" of {self.model}"
        told = f"engine auto: {self.engine} {self.precision}{own}, {self.speed:.2f}× {self.reference}, "
        told += f"{100 * self.agreement:.3f} % of labels; "
        told += f"remembered from {self.measured}" if self.remembered else "measured now"
        return told + "".join(f"; refused {reason}" for reason in self.refused)


def select_engine(
    repository: "Repository",
    name: str,
    version: str | None = None,
    placement: Placement = Placement(),  # noqa: B008 - frozen.
) -> EngineChoice:
    """The fastest candidate whose labels agree with the reference as the manifest's `agreement_floor` wants.

    `placement`: where to run; a precision in it leaves only the candidates that compute in it.

    Raises:
        SkylaneError: there is no such model, its reference cannot be loaded, or no candidate agrees with it.
    """
    found = candidates(repository, name, version)
    if placement.precision is not None:
        found = [each for each in found if each.precision is placement.precision]
    floor = repository.manifest(name, version).agreement_floor
    question = _Question(name, reference(repository, name, version), found, placement, floor)
    key = question.key()
    with engine_cache.alone():  # Replicas that start at once would measure each other, and select_engine each its own.
        known = question.answer(engine_cache.recall(key))
        if known is not None:
            return known
        choice = _measured(repository, question)
        engine_cache.remember(key, asdict(choice))
        return choice


@dataclass(frozen=True, slots=True)
class _Question:
    """What is to be chosen from."""

    asked: str
    held: Candidate  # The reference.
    found: list[Candidate]
    placement: Placement
    floor: float

    def key(self) -> str:
        """What a choice holds for: this host with its libraries, these files, this placement and floor."""
        document = json.dumps({"host": machine(), **asdict(self)}, sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()

    def answer(self, fields: Mapping[str, Any] | None) -> EngineChoice | None:
        """A remembered choice; None where there is none, or what is there is none of what is asked for here."""
        if fields is None:
            return None
        ways = {(each.model, each.version, each.engine, each.precision): each for each in self.found}
        try:
            known = EngineChoice(**fields)
            way = ways[known.model, known.version, known.engine, Precision(known.precision)]
            return replace(
                known,
                precision=way.precision,
                speed=float(known.speed),
                agreement=float(known.agreement),
                refused=tuple(map(str, known.refused)),
                remembered=True,
            )
        except (KeyError, TypeError, ValueError):
            return None


def _measured(repository: "Repository", question: _Question) -> EngineChoice:
    held, name = question.held, question.asked
    refused: list[str] = []
    shares: dict[Candidate, float] = {}
    with ExitStack() as opened:
        own = opened.enter_context(_load(repository, held, question.placement))
        manifest = own.manifest
        shown = warmup_images(manifest.input.height, manifest.input.width, _PICTURES)
        truth = own.infer(shown)
        models: dict[Candidate, Model] = {held: own}
        for candidate in question.found:
            try:
                if candidate != held:
                    models[candidate] = opened.enter_context(_load(repository, candidate, question.placement))
                share = _share(manifest, own, truth, models[candidate], shown)
                if share < question.floor:
                    raise SkylaneError(f"{100 * share:.3f} % of labels, floor {100 * question.floor:g} %")  # noqa: TRY301
            except SkylaneError as error:
                refused.append(f"{candidate.beside(name)} ({error})")
            else:
                shares[candidate] = share
        if not shares:
            raise SkylaneError(f"model {name}: no engine can be taken: {'; '.join(refused) or 'none computes so'}")
        runs = {key: partial(models[key].infer, shown[:1]) for key in (held, *(key for key in shares if key != held))}
        warm_ms = {candidate: min(each) for candidate, each in race(runs, _WARM_UP).items()}
        most_ms = _HOPELESS * min(warm_ms.values())
        runs = {key: run for key, run in runs.items() if key == held or warm_ms[key] <= most_ms}
        # The median is what vehicles get: an engine that is fast once and slow ten times is no fast one.
        took_ms = {candidate: median(each) for candidate, each in race(runs, _ROUNDS).items()}
    best = min((each for each in shares if each in took_ms), key=lambda candidate: took_ms[candidate])
    return EngineChoice(
        asked=name,
        model=best.model,
        version=best.version,
        engine=best.engine,
        precision=best.precision,
        reference=held.beside(name),
        speed=took_ms[held] / took_ms[best],
        agreement=shares[best],
        refused=tuple(refused),
        measured=datetime.now(UTC).date().isoformat(),
    )


def _share(manifest: "Manifest", own: "Model", truth: Outputs, model: "Model", shown: Images) -> float:
    """The share of a candidate's labels that are the reference's.

    Raises:
        SkylaneError: it takes other pictures or names other classes, or it failed.
    """
    if model.input_shape != own.input_shape or model.card.labels != own.card.labels:
        raise SkylaneError("its input or its labels are others than the reference's")
    return agreement(manifest, truth, model.infer(shown))


def _load(repository: "Repository", candidate: Candidate, placement: Placement) -> "Model":
    where = replace(placement, precision=candidate.precision)
    return repository.load(candidate.model, where, version=candidate.version, engine=candidate.engine)
