"""What the vehicle's tests share: a model card, frames and answers."""

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
from shared.messages.model_card import ModelCard, Task
from shared.stages import CLOUD_STAGES, Stage, Stamp

HEIGHT, WIDTH = 8, 12
CARD = ModelCard(
    name="tiny",
    version="1",
    sha256="0" * 64,
    task=Task.SEGMENTATION,
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
    """Returns the lines that Skylane logged so far, each as its fields; the message is `event`."""
    caplog.set_level(logging.INFO, logger="skylane")
    return lambda: [
        {**record.msg, "level": record.levelname.lower()} for record in caplog.records if isinstance(record.msg, dict)
    ]


@pytest.fixture
def card() -> ModelCard:
    """A model of 8×12 pixels, rgb8, two classes."""
    return CARD


@pytest.fixture
def frame() -> Callable[..., Frame]:
    """Makes frames, numbered, of the model's size."""

    def make(index: int = 0, camera: str = "/left", source_ns: int = 0) -> Frame:
        return Frame(np.full((HEIGHT, WIDTH, 3), index % 256, np.uint8), Layout.RGB8, camera, index, 7, source_ns, 5)

    return make


@pytest.fixture
def send() -> Callable[[FrameRecord], FrameRecord]:
    """Has a journey pass all stages up to sent, a microsecond each."""

    def pass_stages(journey: FrameRecord) -> FrameRecord:
        at_ns = journey.times[Stage.DUE]
        for stage in (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT):
            at_ns += 1000
            journey.times[stage] = at_ns
        journey.stamps = tuple(Stamp(stage.value, NODE, at) for stage, at in journey.times.items())
        return journey

    return pass_stages


@pytest.fixture
def answer() -> Callable[..., ResultMessage]:
    """Makes a worker's answer to a sent journey; its clock is ten seconds ahead."""

    def make(journey: FrameRecord, status: Status = Status.ANSWERED, **changes: Any) -> ResultMessage:
        base_ns = journey.times[Stage.SENT] + 10**10
        cloud = tuple(Stamp(stage.value, "cloud/w/s9", base_ns + 100 * i) for i, stage in enumerate(CLOUD_STAGES))
        fields: dict[str, Any] = {
            "id": journey.id,
            "attempt": 1,
            "status": status,
            "worker": "w",
            "shape": (HEIGHT, WIDTH) if status is Status.ANSWERED else None,
            "data": mask_codecs.encode(np.ones((HEIGHT, WIDTH), np.uint8), "zstd")
            if status is Status.ANSWERED
            else b"",
            "batch_size": 1,
            "stamps": journey.stamps + cloud,
        }
        return ResultMessage(**fields | changes)

    return make
