"""A sink is added with one file, this one, and one line in the table: here a table of road shares."""

import csv
from pathlib import Path

import numpy as np
import pytest

from edge.sinks.sink import SINKS, FrameResult, SinkEntry
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from tests.pipeline.rig import HEIGHT, WIDTH, direct, noise, pictures, play, worker

FRAMES = 5


class ShareSink:
    """Writes `shares.csv`: the share of each frame's mask that belongs to the first class."""

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._file = (folder / "shares.csv").open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(("index", card.labels.names[0]))

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        self._rows.writerow((frame.frame_index, np.mean(frame.result == 0)))

    def close(self) -> None:
        """See Sink."""
        self._file.close()


def test_a_new_sink_gets_the_results_of_a_run(
    embedded_url: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen by the name in the table, and gets the frames in order."""
    monkeypatch.setitem(SINKS, "shares", SinkEntry(f"{__name__}:ShareSink", "edge", lambda task: task.has_shape))
    out = tmp_path / "car-shares"
    with worker(embedded_url, model):
        code, printed = play(
            pictures(tmp_path, FRAMES), embedded_url, out, closed_loop=True, codec="raw", sinks=("shares",)
        )
    assert code == 0, printed
    with (out / "shares.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == list(range(FRAMES))
    for index, row in enumerate(rows):
        mask = direct(model, noise(index, (HEIGHT, WIDTH, 3))[..., ::-1])
        assert float(row["road"]) == pytest.approx(np.mean(mask == 0))
