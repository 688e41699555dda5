"""Checks and opens the configured gate and local model of a run, and reports on their use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.reuse.local_model import LocalAnswers, LocalModel, LocalModelError
from shared.inference.model import Model, open_local, warmup_images
from shared.inference.table import formats_of, local_engines
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.models.manifest import BatchingSection, Placement
from shared.models.repository import Repository, StoredModel, default_root
from shared.reuse.gate import DifferenceGate, GateSettings
from shared.reuse.tuning import CascadeThresholds, TunedLocalSection, Tuning, TuningError, read_tuning, shipped_tuning
from shared.runlog.latency_log import Outcome
from shared.task import ConfidenceError, task_named

_REUSE_FRAMES, _REUSE_MS = 100, 10_000.0  # Longest reuse if neither the options nor a tuning file set it.
_MAX_ASPECT_DIFFERENCE = 0.01
_SHOWN_DIGITS = 12  # Length of a model's hash in a line.
_TASKS_WITH_PLACES = ("segmentation", "detection")  # Their results depend on the field of view.


@dataclass(frozen=True, slots=True)
class Reuse:
    """The gate and the local model of a run, and their settings for the manifest."""

    gate: DifferenceGate[ModelResult] | None
    local: LocalAnswers | None
    settings: dict[str, Any]

    @property
    def has_cascade(self) -> bool:
        """True if the local model also answers frames that could be sent."""
        return self.local is not None and self.local.thresholds is not None

    def record(self) -> dict[str, Any]:
        """Returns the section of the manifest: the settings in use, and the counts so far."""
        record = dict(self.settings)
        if self.gate is not None:
            record["gate"] = {**record["gate"], "resets": self.gate.resets}
        if self.local is not None:
            record["local"] = {**record["local"], **self.local.model.counts()}
        return record

    def lines(self, counts: RunCounts, *, is_open_loop: bool) -> Iterator[str]:
        """Yields the summary's lines on frames that were not sent, and warnings."""
        if self.gate is not None:
            gate = self.settings["gate"]
            yield (
                f"{counts.outcomes.get(Outcome.REUSED, 0)} frames got the result of an earlier frame ({gate['method']} up to "
                f"{gate['threshold']:g})"
            )
            if self.gate.resets:
                yield (
                    f"WARNING: changes of a camera's frame size or encoding: {self.gate.resets}; no result from before one "
                    "was reused after it"
                )
        if self.local is not None:
            yield from _local_lines(self.local, counts, is_open_loop=is_open_loop)


def _local_lines(local: LocalAnswers, counts: RunCounts, *, is_open_loop: bool) -> Iterator[str]:
    model, card = local.model, local.model.model.card
    took = f", {model.median_ms:.1f} ms at the median" if model.median_ms is not None else ""
    yield (
        f"{counts.outcomes.get(Outcome.ANSWERED_LOCALLY, 0)} frames answered by the vehicle ({card.name} {card.version}, "
        f"{local.engine}, {card.sha256[:_SHOWN_DIGITS]}{took})"
    )
    if model.failures:
        failures = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(model.failures.items()))
        yield f"WARNING: local model {card.name} failed ({failures}): those frames went to the workers"
    if model.pauses:
        yield f"WARNING: local model {card.name} was paused {model.pauses} times, the last time because {model.pause_reason}"
    period_ms = local.pace.period_ms
    if is_open_loop and model.median_ms is not None and period_ms is not None and model.median_ms > period_ms:
        yield (
            f"WARNING: local model {card.name} took {model.median_ms:.1f} ms for a frame, but a frame was due every "
            f"{period_ms:.1f} ms: newer frames replaced those that waited (dropped, window); choose a smaller model or a "
            "lower rate"
        )


@contextmanager
def open_reuse(config: EdgeConfig, card: ModelCard) -> Iterator[Reuse | None]:
    """Yields the configured gate and local model, warmed up; None if neither is configured.

    `card`: the card of the reference model, which the workers serve.

    Raises:
        SkylaneError: the local model, a threshold or the tuning file cannot be used for this model.
    """
    if config.gate is None and config.local_model is None:
        yield None
        return
    tuning = _Tuned.find(config, card)
    settings: dict[str, Any] = {} if tuning is None else tuning.record
    gate = None
    if config.gate is not None:
        chosen = _gate_settings(config, config.gate, card, tuning)
        gate = DifferenceGate[ModelResult](chosen)
        settings["gate"] = {
            "method": chosen.method,
            "threshold": chosen.threshold,
            "threshold_from": "options" if config.gate_threshold != "auto" else "tuning",
            "reuse_frames": chosen.reuse_frames,
            "reuse_ms": chosen.reuse_ms,
        }
    if config.local_model is None:
        yield Reuse(gate, None, settings)
        return
    stored = find_local_model(config, card)
    tuned = _tuned_local(config, stored, tuning)
    with opened_local_model(stored, config) as local:
        thresholds = _thresholds(config, local.model, card, tuned) if config.cascade else None
        temperature = 1.0 if tuned is None else tuned.temperature
        answers = LocalAnswers(local, card, config.resize, config.want, thresholds, temperature)
        opened = local.model.card
        settings["local"] = {
            "name": opened.name,
            "version": opened.version,
            "sha256": opened.sha256,
            "engine": answers.engine,
            "temperature": temperature,
            "c_low": thresholds.c_low if thresholds else None,
            "c_high": thresholds.c_high if thresholds else None,
        }
        yield Reuse(gate, answers, settings)


def find_local_model(config: EdgeConfig, card: ModelCard) -> StoredModel:
    """Returns the configured local model, after `check_local_model`."""
    assert config.local_model is not None
    stored = Repository(config.models or default_root()).find(config.local_model)
    check_local_model(stored, card)
    return stored


def check_local_model(stored: StoredModel, card: ModelCard) -> None:
    """Checks that a local model can answer in place of the reference model.

    Raises:
        LocalModelError: the task, labels, aspect ratio or format differ.
    """
    name, own = stored.name, stored.card()
    if own.task != card.task:
        raise LocalModelError(
            f"local model {name} answers {own.task}, model {card.name} {card.task}: choose one of the same task with "
            "--local-model"
        )
    if not task_named(card.task).heads:
        raise LocalModelError(f"local model {name}: raw tensors are only answered by workers: leave --local-model out")
    if own.labels.names != card.labels.names:
        raise LocalModelError(
            f"local model {name} has other labels than model {card.name} ({_first_difference(own, card)}): choose one "
            "with the same labels in the same order with --local-model"
        )
    ratio = own.width / own.height * card.height / card.width
    if card.task in _TASKS_WITH_PLACES and abs(ratio - 1) > _MAX_ASPECT_DIFFERENCE:
        raise LocalModelError(
            f"local model {name} has an input of {own.height}×{own.width}, model {card.name} of "
            f"{card.height}×{card.width}: they would see different parts of a frame; choose one with the same ratio of "
            "height and width"
        )
    readable = formats_of(local_engines(stored.manifest.engine))
    if stored.manifest.format not in readable:
        raise LocalModelError(
            f"local model {name} is a {stored.manifest.format}, and a vehicle runs {' or '.join(readable)}: convert it "
            f"with `skylane model convert {name} --to {readable[0]}`"
        )


@contextmanager
def opened_local_model(stored: StoredModel, config: EdgeConfig) -> Iterator[LocalModel]:
    """Opens a local model in the thread that runs it, and closes it after the block."""
    local = LocalModel(partial(_open, stored, config), config.local_timeout_ms / 1e3)
    try:
        yield local
    finally:
        local.close()


def _open(stored: StoredModel, config: EdgeConfig) -> Model:
    """Opens and warms up the local model, for one image at a time."""
    manifest = stored.manifest.with_confidence_head().model_copy(update={"batching": BatchingSection(max_size=1)})
    placement = Placement(device="cpu", intra_threads=config.local_threads, inter_threads=1)
    model = open_local(replace(stored, manifest=manifest), placement)
    try:
        model.warm_up()
    except BaseException:
        model.close()
        raise
    return model


def _first_difference(own: ModelCard, card: ModelCard) -> str:
    ours, theirs = own.labels.names, card.labels.names
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"label {number} is {one!r} instead of {other!r}"
    return f"{len(ours)} labels instead of {len(theirs)}"


@dataclass(frozen=True, slots=True)
class _Tuned:
    """The tuning file in use."""

    path: Path
    tuning: Tuning

    @classmethod
    def find(cls, config: EdgeConfig, card: ModelCard) -> "_Tuned | None":
        """Returns the configured tuning file, else the one that ships for the model if it fits; None without a file."""
        path = config.tuning or shipped_tuning(card.name)
        if path is None:
            return None
        tuning = read_tuning(path)
        needs_it = config.tuning is not None or _needs_tuning(config)
        try:
            tuning.check_reference(card.name, card.sha256, path)
        except TuningError:
            if needs_it:
                raise
            return None
        return cls(path, tuning)

    @property
    def record(self) -> dict[str, Any]:
        """The file for the manifest, with the accuracy lost by its numbers on the drives that they were tuned on."""
        measured = self.tuning.measured
        return {"tuning": str(self.path)} | (
            {} if measured is None else {"measured": measured.model_dump(mode="json", exclude_none=True)}
        )


def _needs_tuning(config: EdgeConfig) -> bool:
    lacks_threshold = config.gate is not None and config.gate_threshold == "auto"
    return lacks_threshold or (config.cascade and (config.c_low is None or config.c_high is None))


def _gate_settings(config: EdgeConfig, method: str, card: ModelCard, tuned: _Tuned | None) -> GateSettings:
    if config.gate_threshold == "auto":
        if tuned is None:
            raise TuningError(
                f"--gate {method}: there is no tuned threshold for model {card.name}: give --gate-threshold, or tune one "
                f"with `skylane model tune-gate BAG --model {card.name}` and give its file with --tuning"
            )
        settings = tuned.tuning.gate_settings(method)
    else:
        settings = GateSettings(method, config.gate_threshold, _REUSE_FRAMES, _REUSE_MS)
        if tuned is not None and tuned.tuning.gate is not None:
            longest = tuned.tuning.gate
            settings = replace(settings, reuse_frames=longest.reuse_frames, reuse_ms=longest.reuse_ms)
    if config.reuse_frames is not None:
        settings = replace(settings, reuse_frames=config.reuse_frames)
    if config.reuse_ms is not None:
        settings = replace(settings, reuse_ms=config.reuse_ms)
    return settings


def _tuned_local(config: EdgeConfig, stored: StoredModel, tuned: _Tuned | None) -> TunedLocalSection | None:
    """Returns the tuned numbers of the local model; None if no file has them and the run does not need them."""
    if tuned is None:
        return None
    try:
        return tuned.tuning.local_for(stored.name, stored.manifest.sha256, tuned.path)
    except TuningError:
        if config.tuning is not None or (config.cascade and None in (config.c_low, config.c_high)):
            raise
        return None


def _thresholds(
    config: EdgeConfig, local: Model, card: ModelCard, tuned: TunedLocalSection | None
) -> CascadeThresholds:
    """Returns the thresholds of the cascade, after checking that the model's answers have a confidence."""
    name = local.card.name
    one = local.infer_one(warmup_images(local.card.height, local.card.width, 1)[0])
    try:
        confidence = task_named(card.task).confidence(one, local.manifest, 1.0)
    except ConfidenceError as error:
        raise LocalModelError(f"--cascade: local model {name}: {error}") from error
    except (ValueError, TypeError) as error:  # NumPy's errors.
        shapes = ", ".join(f"{head} {'×'.join(map(str, values.shape)) or 'one number'}" for head, values in one.items())
        raise LocalModelError(
            f"--cascade: local model {name}: its scores have a wrong shape or type ({shapes}): correct model.yaml"
        ) from error
    c_low, c_high = config.c_low, config.c_high
    if tuned is not None:
        c_low, c_high = tuned.c_low if c_low is None else c_low, tuned.c_high if c_high is None else c_high
    if not confidence.two_sided and c_high is not None:
        c_low = c_low or 0.0  # Not used: a low score is never certain.
    if c_low is None or c_high is None:
        raise TuningError(
            f"--cascade: there are no tuned thresholds for local model {name}: give --c-low and --c-high, or tune them "
            f"with `skylane model tune-gate BAG --model {card.name} --local-model {name}` and give the file with --tuning"
        )
    return CascadeThresholds(c_low, c_high)
