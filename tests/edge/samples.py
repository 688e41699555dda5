"""Samples for the vehicle's tests: a model card, frames, their records, and replies."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from edge.frame_record import FrameRecord
from edge.sinks.sink import FrameResult
from shared.imaging import image_codecs
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId, camera_name
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


def make_frame(index: int = 0, camera: str = "/left", source_ns: int = 0) -> Frame:
    """Makes a numbered frame of the model's size."""
    return Frame(np.full((HEIGHT, WIDTH, 3), index % 256, np.uint8), Layout.RGB8, camera, index, 7, source_ns, 5)


def make_record(sequence: int = 0, due_ns: int = 0, camera: str = "/left") -> FrameRecord:
    """Makes the record of a frame that is due."""
    frame_id = FrameId("car", camera_name(camera), "s1", sequence)
    return FrameRecord.of(
        frame_id, camera, frame_index=sequence, frame_stamp_ns=7, read_ns=5, edge_times={Stage.DUE: due_ns}
    )


def mark_sent(record: FrameRecord) -> FrameRecord:
    """Gives a record the times of all stages up to sent, one microsecond apart."""
    at_ns = record.times[Stage.DUE]
    for stage in (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT):
        at_ns += 1000
        record.times[stage] = at_ns
    record.stamps = tuple(Stamp(stage.value, NODE, at) for stage, at in record.times.items())
    return record


def make_answer(record: FrameRecord, status: Status = Status.ANSWERED, **changes: Any) -> ResultMessage:
    """Makes a worker's reply to a sent frame; the worker's clock is ten seconds ahead."""
    base_ns, is_answered = record.times[Stage.SENT] + 10**10, status is Status.ANSWERED
    cloud = tuple(Stamp(stage.value, "cloud/w/s9", base_ns + 100 * i) for i, stage in enumerate(CLOUD_STAGES))
    fields: dict[str, Any] = {
        "id": record.id,
        "attempt": 1,
        "status": status,
        "worker": "w",
        "model": CARD.name,
        "model_version": CARD.version,
        "model_sha256": CARD.sha256,
        "shape": (HEIGHT, WIDTH) if is_answered else None,
        "data": image_codecs.encode_mask(np.ones((HEIGHT, WIDTH), np.uint8), "zstd") if is_answered else b"",
        "batch_size": 1,
        "stamps": record.stamps + cloud,
    }
    return ResultMessage(**fields | changes)


def make_result(image: Any, time_ms: int = 0) -> FrameResult:
    """Makes a frame of a camera with a mask of class 0; `image`: H×W×3 uint8 RGB."""
    height, width = image.shape[:2]
    return FrameResult(
        camera="/cam",
        sequence=time_ms,
        frame_index=time_ms,
        stamp_ns=10**18,
        source_ns=10**18 + time_ms * 1_000_000,
        image=image,
        result=np.zeros((height, width), np.uint8),
        geometry=plan(Resize.CROP, height, width, height, width),
    )


class RecordingSink:
    """A sink that stores the frames that it gets; `on_write` is called before each is stored."""

    def __init__(self, on_write: Callable[[FrameResult], object] = lambda _: None, *, in_order: bool = True) -> None:
        self.in_order = in_order
        self.frames: list[FrameResult] = []
        self.is_closed = False
        self._on_write = on_write

    @property
    def got(self) -> list[int]:
        """The sequence numbers of the stored frames."""
        return [frame.sequence for frame in self.frames]

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        self._on_write(frame)
        self.frames.append(frame)

    def close(self) -> None:
        """See Sink."""
        self.is_closed = True


class ListedSource:
    """A source with given frames, which may end with an error."""

    frame_count = None
    provenance: dict[str, str | int | float | list[str]] = {"kind": "list"}  # noqa: RUF012 (the protocol's type)

    def __init__(self, frames: Iterable[Frame | UnreadableFrame], error: Exception | None = None) -> None:
        self._frames = frames
        self._error = error
        self.yielded = 0

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        for frame in self._frames:
            self.yielded += 1
            yield frame
        if self._error:
            raise self._error

    def close(self) -> None:
        """See FrameSource."""
