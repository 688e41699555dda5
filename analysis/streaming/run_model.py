"""The model of a recorded run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelling.evaluation.segmentation import EvaluationError


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of a run, as far as its manifest describes it."""

    task: str
    names: tuple[str, ...]  # Names of the classes.
    height: int  # Height of the input in pixels.
    width: int  # Width of the input in pixels.

    @classmethod
    def of(cls, manifest: Mapping[str, Any], folder: Path) -> "RunModel":
        """Returns the model of a run.

        Raises:
            EvaluationError: The manifest does not describe it.
        """
        model = manifest.get("model")
        model = model if isinstance(model, Mapping) else {}
        task, names = model.get("task"), model.get("labels")
        sides = [model.get("height"), model.get("width")]
        is_described = isinstance(names, list) and names and all(isinstance(side, int) and side > 0 for side in sides)
        if not isinstance(task, str) or not is_described:
            raise EvaluationError(
                f"{folder}: its manifest does not name the classes of the model, as those of earlier versions: play the run "
                "again"
            )
        return cls(task, tuple(map(str, names or ())), *map(int, sides))  # type: ignore[arg-type]  # Checked above.
