"""The results of a run that the sink `bag` stored, by camera and frame."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.streaming.bag_topics import StampedTopic, named_topic, opened, positions_of, topic_of
from analysis.streaming.comparisons import TruthComparison
from analysis.streaming.tick_outputs import OutputsByCamera, TickOutput
from modelling.evaluation.segmentation import EvaluationError


class StoredResults:
    """Reads stored results in the order of their frames."""

    def __init__(self, topics: Mapping[str, StampedTopic[Any]], positions: Mapping[str, Mapping[int, int]]) -> None:
        """`positions` has the position of the result of each frame on the topic of its camera."""
        self._topics = topics
        self._positions = positions

    def frames(self, camera: str) -> npt.NDArray[np.int64]:
        """Returns the sequence numbers of the frames of a camera whose result is stored."""
        return np.array(sorted(self._positions.get(camera, ())), np.int64)

    def kept(self, camera: str, ticks: Sequence[TickOutput]) -> list[TickOutput]:
        """Returns the ticks of a camera whose result is stored."""
        positions = self._positions.get(camera, {})
        return [tick for tick in ticks if tick.source in positions]

    def read(self, camera: str, sequence: int) -> Any:
        """Returns the result of a frame; None if it is not stored or cannot be read."""
        position = self._positions.get(camera, {}).get(sequence)
        return None if position is None else self._topics[camera].read(position)


@contextmanager
def stored_results(folder: Path, comparison: TruthComparison, outputs: OutputsByCamera) -> Iterator[StoredResults]:
    """Opens the results that a run stored in `folder`; `outputs` has the frames with a result, under their own number.

    Raises:
        EvaluationError: The sink `bag` did not write there, or its bag cannot be read.
    """
    path = folder / comparison.stored
    if not path.exists():
        raise EvaluationError(
            f"{folder} holds no {comparison.stored}: streaming accuracy compares stored results, so play the run with "
            "--sink bag"
        )
    with opened(path, "the stored results cannot be read") as bag:
        topics: dict[str, StampedTopic[Any]] = {}
        positions: dict[str, dict[int, int]] = {}
        for camera, ticks in outputs.items():
            if name := named_topic(bag, topic_of(camera, comparison.result_topic)):
                topics[camera] = StampedTopic(bag, name, comparison.read_result)
                frames = [(tick.sequence, tick.stamp_ns) for tick in ticks if tick.source is not None]
                positions[camera] = positions_of(frames, topics[camera].stamps_ns)
        yield StoredResults(topics, positions)
