"""A plug-in of each kind, in a distribution of its own; importing it is noted in the file that ALL_KINDS_LOG names."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edge.config import EdgeConfig
from edge.presenting.presenter import ArrivedResult, Output, PresenterParts, Tick
from edge.sinks.sink import FrameResult
from edge.transports.mqtt_transport import open_mqtt
from edge.transports.transport import Transport, TransportEvents
from shared.imaging.frames import Frame, Layout, Pixels
from shared.inference.engine import Images, Outputs
from shared.messages.model_card import ModelCard
from shared.models.manifest import Manifest, Placement
from shared.runlog.presented_log import OutputOrigin
from shared.tasks.segmentation import SegmentationTask

if "ALL_KINDS_LOG" in os.environ:
    with Path(os.environ["ALL_KINDS_LOG"]).open("a", encoding="utf-8") as log:
        log.write("imported\n")


class NoiseSource:
    """`noise:N` is N images of noise, 64×96 RGB, at ten images per second."""

    def __init__(self, source: str, *, topics: Sequence[str], start_offset_s: float, duration_s: float | None) -> None:
        del topics, start_offset_s, duration_s
        self.frame_count = int(source.partition(":")[2])
        self.provenance = {"kind": "noise", "frames": self.frame_count}

    def frames(self) -> Iterator[Frame]:
        """See FrameSource."""
        for index in range(self.frame_count):
            pixels = np.random.default_rng(index).integers(0, 256, (64, 96, 3), np.uint8)
            yield Frame(pixels, Layout.RGB8, "noise", index, index * 10**8, index * 10**8, 0)

    def close(self) -> None:
        """See FrameSource."""


class DifferenceImages:
    """The difference of each value to the one before."""

    def encode(self, pixels: Pixels, _layout: Layout, _quality: int) -> bytes:
        """See ImageCodec."""
        return np.diff(pixels.reshape(-1), prepend=np.uint8(0)).tobytes()

    def decode(self, data: bytes, _layout: Layout, shape: tuple[int, ...]) -> Pixels:
        """See ImageCodec."""
        return np.cumsum(np.frombuffer(data, np.uint8), dtype=np.uint8).reshape(shape)


class NibbleMasks:
    """Class ids below 16, two in each byte."""

    def encode(self, mask: Pixels) -> bytes:
        """See MaskCodec."""
        ids = mask.reshape(-1, 2)
        return (ids[:, 0] << 4 | ids[:, 1]).tobytes()

    def decode(self, data: bytes, height: int, width: int) -> Pixels:
        """See MaskCodec."""
        pairs = np.frombuffer(data, np.uint8)
        return np.stack((pairs >> 4, pairs & 15), axis=1).reshape(height, width)


class LinearEngine:
    """Scores each pixel by a matrix, colours × classes."""

    formats = ("matrix",)
    name = "linear"
    device = "cpu"
    batch_size = None

    def __init__(self, path: Path, manifest: Manifest, _placement: Placement) -> None:
        self.precision = manifest.precision
        self._weights = np.load(path)

    def infer(self, batch: Images) -> Outputs:
        """See Engine."""
        return {"mask": np.argmax(batch @ self._weights, axis=-1).astype(np.uint8)}

    def close(self) -> None:
        """See Engine."""


class ColourTask(SegmentationTask):
    """A mask of the strongest colour of each pixel."""

    result_name = "colour"


def open_relay(config: EdgeConfig, session: str, events: TransportEvents) -> Transport:
    """The MQTT transport under another name."""
    return open_mqtt(config, session, events)


class ReversingPresenter:
    """Presents the newest result with the classes in reverse order."""

    def __init__(self, parts: PresenterParts) -> None:
        self._last_class = len(parts.card.labels.names) - 1

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del tick
        if newest is None:
            return Output(OutputOrigin.NONE)
        return Output(OutputOrigin.WARPED, self._last_class - newest.result)


class CountSink:
    """Writes `counts.txt`: index, origin, and the number of pixels of each class; it takes the setting `top_k`."""

    in_order = True
    settings = ("top_k",)

    def __init__(self, folder: Path, card: ModelCard, *, top_k: int | None) -> None:
        self._file = (folder / "counts.txt").open("w", encoding="utf-8")
        self._classes = top_k or len(card.labels.names)

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        counts = np.bincount(frame.result.reshape(-1), minlength=self._classes).tolist()
        self._file.write(f"{frame.frame_index} {frame.origin} {counts}\n")

    def close(self) -> None:
        """See Sink."""
        self._file.close()
