"""The tuning file: the thresholds that `skylane model tune-gate` found for a reference model, and the rule of the cascade.

A vehicle reads it with `--tuning`, or uses the file that ships for its reference model. The cascade follows that of NoScope
(Kang et al. 2017): two thresholds divide the local model's scores into a certain no, a certain yes, and the frames between, which
the reference model must answer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import yaml
from pydantic import Field, model_validator

from shared.config import Section, read_yaml
from shared.errors import SkylaneError, unwritable_message
from shared.files import write_file
from shared.models.manifest import NAME, SHA256
from shared.package_data import shipped
from shared.reuse.gate import GateSettings
from shared.task import Confidence


@dataclass(frozen=True, slots=True)
class CascadeThresholds:
    """The scores that are certain: those up to `c_low` (only of two-sided scores), and those from `c_high` on."""

    c_low: float
    c_high: float

    def __post_init__(self) -> None:
        problem = threshold_problem(self.c_low, self.c_high)
        if problem is not None:
            raise SkylaneError(problem)


def threshold_problem(c_low: float, c_high: float) -> str | None:
    """Returns the problem of two thresholds; None if they are valid."""
    if 0 <= c_low < c_high <= 1:
        return None
    return f"c_low {c_low:g} and c_high {c_high:g}: give 0 <= c_low < c_high <= 1, such as 0.1 and 0.9"


def is_sure(confidence: Confidence, thresholds: CascadeThresholds) -> bool:
    """Returns whether the local model's answer is good enough: every score must be certain."""
    certain = confidence.scores >= np.float32(thresholds.c_high)
    if confidence.two_sided:
        certain |= confidence.scores <= np.float32(thresholds.c_low)
    return bool(certain.all())


_Share = Annotated[float, Field(ge=0, le=1)]


class TuningError(SkylaneError):
    """A tuning file does not fit the models or the options of a run."""


class TunedModelSection(Section):
    """A model that tuned numbers are for."""

    name: str = Field(pattern=NAME)
    sha256: str = Field(pattern=SHA256)


class TunedGateSection(Section):
    """The difference detector's numbers; a method without a threshold was not tuned."""

    mse: float | None = Field(default=None, ge=0)  # Grey levels, squared.
    pixels: float | None = Field(default=None, ge=0, le=100)  # Percent of the pixels.
    reuse_frames: int = Field(ge=1)
    reuse_ms: float = Field(gt=0)


class TunedLocalSection(TunedModelSection):
    """The local model's numbers."""

    temperature: float = Field(gt=0)
    c_low: float
    c_high: float

    @model_validator(mode="after")
    def _thresholds_in_order(self) -> Self:
        problem = threshold_problem(self.c_low, self.c_high)
        if problem is not None:
            raise ValueError(problem)
        return self


class ReliabilityBinSection(Section):
    """The answers whose confidence lies in one of the equal ranges of a reliability diagram."""

    low: _Share  # Range of the confidence.
    high: _Share
    count: int = Field(ge=0)
    confidence: _Share | None = None  # Mean; None without answers.
    accuracy: _Share | None = None  # Share of right answers: those that agree, if compared with results.


class MeasuredSection(Section):
    """Cost and benefit of the chosen numbers on the drives that they were chosen on."""

    drives: tuple[str, ...]  # Names of the recordings.
    frames: int = Field(ge=1)
    compared_with: Literal["labels", "results"] = "labels"  # True labels, or the results of the reference model.
    delay_ms: float = Field(default=0.0, ge=0)  # Time from a frame to the reference model's answer.
    metric: str  # mIoU, accuracy or mAP, or an agreement.
    reference_accuracy: float | None = None  # Points: 0 to 100; None if compared with results.
    accuracy: float | None = None  # The same, with gate and cascade.
    agreement: float | None = None  # Replaces both values above if compared with results.
    loss: float  # The reference's points minus those with gate and cascade.
    loss_bound: float  # Upper confidence bound of the loss on other drives.
    allowed_loss: float  # The value of `--loss`.
    method: str | None = None  # The gate's method that these numbers are for; None without a gate.
    sent: _Share  # Shares of all frames.
    reused: _Share
    answered_locally: _Share
    reliability_unit: str | None = None  # Unit of the reliability diagram: frames, pixels or boxes.
    # Expected calibration error, on frames that the temperature was not fitted on.
    calibration_error: float | None = None
    calibration_error_uncalibrated: float | None = None  # The same with temperature 1.
    reliability: tuple[ReliabilityBinSection, ...] = ()
    reliability_uncalibrated: tuple[ReliabilityBinSection, ...] = ()


class Tuning(Section):
    """A tuning file."""

    reference: TunedModelSection
    gate: TunedGateSection | None = None
    local: TunedLocalSection | None = None
    measured: MeasuredSection | None = None

    def gate_settings(self, method: str) -> GateSettings:
        """Returns the tuned settings of a gate's method.

        Raises:
            TuningError: the method was not tuned.
        """
        threshold = getattr(self.gate, method, None)
        if self.gate is None or threshold is None:
            raise TuningError(
                f"the tuning of {self.reference.name} has no threshold of {method}: give one with --gate-threshold, or "
                f"tune it with `skylane model tune-gate --gate {method}`"
            )
        return GateSettings(method, threshold, self.gate.reuse_frames, self.gate.reuse_ms)

    def check_reference(self, name: str, sha256: str, source: Path) -> None:
        """Checks that the thresholds are for this reference model.

        Raises:
            TuningError: they are for another one; the message names `source`, the tuning file.
        """
        _check(self.reference, name, sha256, source, "reference model")

    def local_for(self, name: str, sha256: str, source: Path) -> TunedLocalSection:
        """Returns the numbers of a local model.

        Raises:
            TuningError: the file is for another local model, or for none; the message names `source`, the tuning file.
        """
        if self.local is None:
            raise TuningError(
                f"{source} has no numbers for a local model: tune {name} with `skylane model tune-gate --local-model {name}`"
            )
        _check(self.local, name, sha256, source, "local model")
        return self.local

    def to_yaml(self) -> str:
        """Returns the text of the file."""
        document = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)


def cascade_thresholds(local: TunedLocalSection) -> CascadeThresholds:
    """Returns the tuned thresholds of the cascade."""
    return CascadeThresholds(local.c_low, local.c_high)


def read_tuning(path: Path) -> Tuning:
    """Reads a tuning file.

    Raises:
        ConfigError: the file is missing or invalid.
    """
    return read_yaml(path, Tuning)


def write_tuning(path: Path, tuning: Tuning, header: str = "") -> None:
    """Writes a tuning file, with `header` as comment lines before it.

    Raises:
        TuningError: the file cannot be written.
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    try:
        write_file(path, comment + tuning.to_yaml())
    except OSError as error:
        raise TuningError(unwritable_message(path, error, "--out")) from error


def shipped_tuning(reference: str) -> Path | None:
    """Returns the tuning file that ships for a reference model; None if no file ships for it."""
    path = shipped("configs") / "tuning" / f"{reference}.yaml"
    return path if path.is_file() else None


def _check(tuned: TunedModelSection, name: str, sha256: str, source: Path, role: str) -> None:
    if (tuned.name, tuned.sha256) == (name, sha256):
        return
    other = f"{tuned.name}, not for {name}" if tuned.name != name else f"another file of {name} ({tuned.sha256[:12]}…)"
    raise TuningError(
        f"{source} holds thresholds for the {role} {other}: give the tuning file of this one with --tuning, or make one "
        f"with `skylane model tune-gate`"
    )
