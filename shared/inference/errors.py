"""Errors of engines."""

from pathlib import Path

from shared.errors import SkylaneError


class EngineError(SkylaneError):
    """A model's file cannot be run as its manifest describes it."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class DeviceError(SkylaneError):
    """The requested device is missing or unsuitable."""

    def __init__(self, device: str, problem: str) -> None:
        self.device = device
        super().__init__(f"device {device!r}: {problem}")


class InferenceError(SkylaneError):
    """A model failed on a batch. The text is sent to the vehicle, so it contains no path of this host."""


class ModelUnavailableError(InferenceError):
    """The model could not be reached. The images are not the cause, so a retry image by image is useless."""
