"""The contract of a comparison of results with the truth of their tick, and the table of all, `COMPARISONS`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from analysis.statistics.description import IntervalEstimate
from analysis.streaming.boxes import BoxComparison
from analysis.streaming.masks import MaskComparison
from analysis.streaming.tick_outputs import RunModel, TickOutput
from modelling.evaluation.segmentation import EvaluationError
from modelling.evaluation.streaming import ScoredTicks
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message


class TruthComparison(Protocol):
    """Compares the results of one run with their truth. Built as `TruthComparison(model)`."""

    metric: str  # Such as "mean IoU".
    by_class: str  # The same of one class, such as "IoU".
    stored: str  # The folder into which the sink `bag` writes the results.
    result_topic: str  # The last part of the topic of a camera's results.
    truth_topic: str  # The last part of the topic of a camera's truth.

    def look_at(self, bag: Bag, camera: str) -> None:
        """Reads what the comparison must know of a camera in the bag with the truth."""

    def read_result(self, message: Message) -> Any:
        """Decodes a stored result."""

    def read_truth(self, message: Message) -> Any:
        """Decodes the truth of a frame.

        Raises:
            EvaluationError: The topic holds something else.
        """

    def no_scores(self) -> ScoredTicks[Any]:
        """Returns scores without ticks."""

    def add(self, scores: Any, truth: Any, result: Any, tick: TickOutput, drive: str) -> str:
        """Scores a tick, whose result is None if it has no output. Returns the reason if they cannot be compared."""

    def interval(self, scores: Any, *, with_missing: bool = False) -> IntervalEstimate:
        """Returns the accuracy of ticks with its interval."""

    def cautions(self) -> list[str]:
        """Returns what the truth holds that could not be scored.

        Raises:
            EvaluationError: Nothing could be scored.
        """


COMPARISONS: Mapping[str, Callable[[RunModel], TruthComparison]] = {
    "segmentation": MaskComparison,
    "detection": BoxComparison,
}


def comparison_for(manifest: Mapping[str, Any], folder: Path) -> TruthComparison:
    """Returns the comparison for the results of a run; `manifest` is that of the run in `folder`.

    Raises:
        EvaluationError: The manifest does not describe the model, or the results of its task cannot be compared.
    """
    model = RunModel.of(manifest, folder)
    if model.task not in COMPARISONS:
        raise EvaluationError(
            f"{folder}: its model is for {model.task}, and streaming accuracy compares the results of "
            f"{' and '.join(COMPARISONS)}: report the run without --truth"
        )
    return COMPARISONS[model.task](model)
