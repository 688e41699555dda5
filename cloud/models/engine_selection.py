"""`engine: auto`: selects the fastest engine on this host whose labels agree with the reference, and caches the choice.

The cache of this host is `engines.json` in the user's cache folder.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from cloud.models.engine_benchmark import Candidate, candidates, race, reference
from shared.errors import SkylaneError
from shared.files import open_own
from shared.inference.engine import Images, Outputs
from shared.inference.model import Model, agreement, warmup_images
from shared.models.manifest import Placement
from shared.models.repository import Repository, StoredModel
from shared.runtime.machine import machine

_IMAGES = 4
_WARM_UP_ROUNDS = 3  # The first runs allocate and tune.
_SLOWDOWN_CUTOFF = 3.0  # Candidates that are slower than the fastest by this factor in the warm-up are not measured.
_ROUNDS = 11
CACHE_VARIABLE = "SKYLANE_CACHE"  # Environment variable with the path of another folder.
_MAX_CHOICES = 200  # The newest ones are kept.


class Measurement(msgspec.Struct, frozen=True):
    """The result of a comparison of engines."""

    chosen: str  # The text of the selected candidate.
    speed: float  # Relative to the reference, by the medians of the rounds.
    agreement: float  # Share of labels that equal the reference, 0 to 1.
    refused: tuple[str, ...]  # Candidates that were not suitable, with the reason.
    measured: str  # Date, such as 2026-11-21.


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The selected way to run a model on this host, with the measurements behind it."""

    asked: StoredModel
    candidate: Candidate  # The requested model, or one converted from it.
    reference: Candidate
    measurement: Measurement
    remembered: bool  # True if the measurement comes from the cache.

    def __str__(self) -> str:
        """One line for the log."""
        measurement, name = self.measurement, self.asked.name
        line = f"engine auto: {self.candidate.label(name)}, {measurement.speed:.2f}× {self.reference.label(name)}, "
        line += f"{100 * measurement.agreement:.3f} % of labels; "
        line += f"remembered from {measurement.measured}" if self.remembered else "measured now"
        return line + "".join(f"; refused {reason}" for reason in measurement.refused)


def select_engine(repository: Repository, stored: StoredModel, placement: Placement) -> EngineChoice:
    """Selects the fastest candidate whose agreement with the reference reaches the manifest's `agreement_floor`.

    Args:
        repository: The models.
        stored: The model to run.
        placement: The device. If it has a precision, only candidates with that precision are considered.

    Raises:
        SkylaneError: the reference cannot be opened, or no candidate agrees with it.
    """
    truth = reference(repository, stored)
    found = [each for each in candidates(repository, stored) if placement.precision in (None, each.precision)]
    by_text = {str(each): each for each in found}
    key = _key(stored, truth, found, placement)
    with measurement_lock():  # Workers that start together would distort the measurements.
        measurement = stored_measurement(key)
        remembered = measurement is not None and measurement.chosen in by_text
        if measurement is None or not remembered:
            measurement = _measure(stored, truth, found, placement)
            store_measurement(key, measurement)
    return EngineChoice(stored, by_text[measurement.chosen], truth, measurement, remembered)


def _key(stored: StoredModel, truth: Candidate, found: Sequence[Candidate], placement: Placement) -> str:
    """Returns the cache key, which depends on host, library versions, files, placement and floor."""
    document = {
        "host": machine(),
        "asked": stored.name,
        "candidates": [(str(each), each.stored.manifest.sha256) for each in (truth, *found)],
        "placement": asdict(placement),
        "floor": stored.manifest.agreement_floor,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _measure(stored: StoredModel, base: Candidate, found: Sequence[Candidate], placement: Placement) -> Measurement:
    """Opens all candidates, compares their labels with the reference and measures their speed."""
    floor = stored.manifest.agreement_floor
    refused: list[str] = []
    shares: dict[Candidate, float] = {}
    with ExitStack() as opened:
        own = opened.enter_context(base.open(placement))
        shown = warmup_images(own.card.height, own.card.width, _IMAGES)
        truth = own.infer(shown)
        models: dict[Candidate, Model] = {base: own}
        for candidate in found:
            try:
                if candidate != base:
                    models[candidate] = opened.enter_context(candidate.open(placement))
                share = _share(own, truth, models[candidate], shown)
                if share < floor:
                    raise SkylaneError(f"{100 * share:.3f} % of labels, floor {100 * floor:g} %")  # noqa: TRY301  As its own errors.
            except SkylaneError as error:
                refused.append(f"{candidate.label(stored.name)} ({error})")
            else:
                shares[candidate] = share
        if not shares:
            reasons = "; ".join(refused) or "none has this precision"
            raise SkylaneError(f"model {stored.name}: no engine is suitable: {reasons}")
        runs = {key: partial(models[key].infer, shown[:1]) for key in dict.fromkeys((base, *shares))}
        warm_ms = {candidate: min(each) for candidate, each in race(runs, _WARM_UP_ROUNDS).items()}
        limit_ms = _SLOWDOWN_CUTOFF * min(warm_ms.values())
        runs = {key: run for key, run in runs.items() if key == base or warm_ms[key] <= limit_ms}
        # The minimum would favour an engine that is fast only once.
        took_ms = {candidate: median(each) for candidate, each in race(runs, _ROUNDS).items()}
    best = min((each for each in shares if each in took_ms), key=lambda candidate: took_ms[candidate])
    date = datetime.now(UTC).date().isoformat()
    return Measurement(str(best), took_ms[base] / took_ms[best], shares[best], tuple(refused), date)


def _share(own: Model, truth: Outputs, model: Model, shown: Images) -> float:
    """Returns the share of a candidate's labels that equal the reference.

    Raises:
        SkylaneError: its input shape or its classes differ, or inference failed.
    """
    if model.input_shape != own.input_shape or model.card.labels != own.card.labels:
        raise SkylaneError("its input or its labels differ from those of the reference")
    return agreement(own.manifest, truth, model.infer(shown))


class _Document(msgspec.Struct):
    choices: dict[str, Measurement]
    form: Literal[2] = 2  # Files of other versions are replaced.


def _cache_file() -> Path:
    """`engines.json` in `SKYLANE_CACHE`, by default in `skylane/` of the XDG cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "engines.json"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "skylane" / "engines.json"


def stored_measurement(key: str) -> Measurement | None:
    """Returns the stored measurement, or None if it is missing or the file is unreadable."""
    return _stored().get(key)


def store_measurement(key: str, measurement: Measurement) -> None:
    """Stores a measurement. Errors are ignored, because the next start can repeat it."""
    path = _cache_file()
    kept = dict(list({**_stored(), key: measurement}.items())[-_MAX_CHOICES:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several workers may write at the same time; replacing the file keeps it complete.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".engines-", delete=False) as draft:
            draft.write(msgspec.json.format(msgspec.json.encode(_Document(kept)), indent=1))
        Path(draft.name).replace(path)
    except OSError:
        return


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Lets one process of this user measure at a time; without effect if the cache folder is not writable."""
    path = _cache_file().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(path)
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Released when the file is closed or the process ends.
        yield


def _stored() -> dict[str, Measurement]:
    try:
        return msgspec.json.decode(_cache_file().read_bytes(), type=_Document).choices
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors.
        return {}
