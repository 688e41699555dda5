"""Fixtures of the vehicle's tests: a model card, frames and replies."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edge.reliability.ledger import FrameRecord
from shared.imaging import mask_codecs
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.stages import CLOUD_STAGES, Stage, Stamp

HEIGHT, WIDTH = 8, 12
CARD = ModelCard(
    name="tiny",
    version="1",
    sha256="0" * 64,
    task="segmentation",
    height=HEIGHT,
    width=WIDTH,
    layout=Layout.RGB8,
    resize=Resize.CROP,
    labels=Labels(("dark", "light"), ((0, 0, 0), (255, 255, 255))),
    trained=True,
)
NODE = "edge/car/s1"


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """Returns the fields of each line that Skylane has logged; the message is `event`."""
    caplog.set_level(logging.INFO, logger="skylane")
    return lambda: [
        {**record.msg, "level": record.levelname.lower()} for record in caplog.records if isinstance(record.msg, dict)
    ]


@pytest.fixture
def card() -> ModelCard:
    """Returns the card of a model with an 8×12 rgb8 input and two classes."""
    return CARD


@pytest.fixture
def frame() -> Callable[..., Frame]:
    """Makes numbered frames of the model's size."""

    def make(index: int = 0, camera: str = "/left", source_ns: int = 0) -> Frame:
        return Frame(np.full((HEIGHT, WIDTH, 3), index % 256, np.uint8), Layout.RGB8, camera, index, 7, source_ns, 5)

    return make


@pytest.fixture
def send() -> Callable[[FrameRecord], FrameRecord]:
    """Gives a record the times of all stages up to sent, one microsecond apart."""

    def set_times(record: FrameRecord) -> FrameRecord:
        at_ns = record.times[Stage.DUE]
        for stage in (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT):
            at_ns += 1000
            record.times[stage] = at_ns
        record.stamps = tuple(Stamp(stage.value, NODE, at) for stage, at in record.times.items())
        return record

    return set_times


@pytest.fixture
def answer() -> Callable[..., ResultMessage]:
    """Makes a worker's reply to a sent frame; the worker's clock is ten seconds ahead."""

    def make(record: FrameRecord, status: Status = Status.ANSWERED, **changes: Any) -> ResultMessage:
        base_ns = record.times[Stage.SENT] + 10**10
        cloud = tuple(Stamp(stage.value, "cloud/w/s9", base_ns + 100 * i) for i, stage in enumerate(CLOUD_STAGES))
        fields: dict[str, Any] = {
            "id": record.id,
            "attempt": 1,
            "status": status,
            "worker": "w",
            "shape": (HEIGHT, WIDTH) if status is Status.ANSWERED else None,
            "data": mask_codecs.encode(np.ones((HEIGHT, WIDTH), np.uint8), "zstd")
            if status is Status.ANSWERED
            else b"",
            "batch_size": 1,
            "stamps": record.stamps + cloud,
        }
        return ResultMessage(**fields | changes)

    return make
