"""Where and how an engine computes: device, threads and number type."""

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """The number type of a model's weights and of its arithmetic."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Placement:
    """The device, thread counts and precision that a model runs with."""

    device: str = "auto"  # "auto" (a GPU if there is one), "cpu", "gpu" or "gpu:N".
    intra_threads: int = 0  # Threads within an operation; 0 lets the engine choose.
    inter_threads: int = 0  # Threads between operations; 0 lets the engine choose.
    instances: int | None = None  # Batches inferred at the same time; None lets the engine choose.
    precision: Precision | None = None  # None takes the manifest's.
