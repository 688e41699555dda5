"""Simulates which answer a vehicle would present for each frame, with a gate and a cascade."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.reuse.gate import DifferenceGate, Form, GateSettings, SmallImage
from shared.reuse.tuning import CascadeThresholds, is_sure
from shared.task import Confidence


@dataclass(frozen=True, slots=True)
class ReplayedFrame:
    """A frame as the gate and the cascade see it."""

    drive: str  # Frames of different drives are never compared.
    form: Form
    small: SmallImage
    time_ns: int
    confidence: Confidence | None = None  # The local model's; None without a local model.


@dataclass(frozen=True, slots=True)
class Presented:
    """The answer that a vehicle presents for a frame."""

    answered: int  # Index of the frame whose answer it is: the frame itself, or an earlier one whose answer is reused.
    is_local: bool  # True if it is the local model's answer, False if the reference model's.
    distance: float | None  # The distance that the gate measured; None without a comparison.


def simulate(
    frames: Sequence[ReplayedFrame], gate: GateSettings | None = None, cascade: CascadeThresholds | None = None
) -> list[Presented]:
    """Returns the presented answer for each frame, if every answer is present before the next frame.

    Args:
        frames: The frames, by drive and time.
        gate: None for no gate.
        cascade: None for no cascade; otherwise every frame needs a confidence.
    """
    detector: DifferenceGate[Presented] | None = None if gate is None else DifferenceGate(gate)
    presented = []
    for index, frame in enumerate(frames):
        compared = detector and detector.compare(
            frame.drive, frame.form, frame.small, sequence=index, time_ns=frame.time_ns
        )
        if compared and compared.reused:
            earlier = compared.reused.result
            presented.append(Presented(earlier.answered, earlier.is_local, compared.distance))
            continue
        is_local = False
        if cascade is not None:
            assert frame.confidence is not None, "a cascade needs the confidence of each frame"
            is_local = is_sure(frame.confidence, cascade)
        answer = Presented(index, is_local, compared.distance if compared else None)
        presented.append(answer)
        if detector and compared:
            detector.keep(compared, answer)
    return presented
