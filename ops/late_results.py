"""Shows late results in `skylane demo`: a drive over a slow link, with results as received and moved to now."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console

from edge.config import EdgeConfig
from edge.presenting.presented_run import OUTPUTS_FOLDER
from edge.run import run
from edge.sinks.rendering import resized
from edge.sinks.video import VIDEO_FORMATS, VideoFile
from edge.sources.source import kind_of, open_source
from modelling.evaluation.bag_images import TimestampMatcher, images_with_labels, labelled_camera, prepared
from modelling.evaluation.streaming import Mask, StreamingScores
from ops.broker.broker import Broker
from ops.link.link import Link
from ops.processes.child import BenchError
from ops.processes.fixed_time import answers_file
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.playback import PlaybackSettings
from rosbag_tools.reading.frames import BagSource
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import UNSEEN, Geometry, to_source
from shared.imaging.image_files import ImageArray, read_mask
from shared.imaging.labels import overlay
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.topics import camera_name
from shared.models.repository import Repository
from shared.network.link_spec import LinkSpec
from shared.runlog.presented_log import PresentedRow, read_presented
from shared.tasks.drawing import draw_lines, mark_untrained

# With encoding and transport about 170 ms: at ten frames a second, the newest result is two frames old.
_LINK = LinkSpec(delay_ms=50)
_INFERENCE_MS = 50.0
_WIDTH = 640  # Width of each of the two pictures, pixels.
_OPACITY = 0.55


@dataclass(frozen=True, slots=True)
class LateResults:
    """A video with two pictures side by side: the results as received, and the results moved to the current frame."""

    video: Path
    age_ms: float  # Median age of the results.
    accuracy: str  # A clause with the mean IoU of both for the tick; empty without true labels.


def play_late(bag: Path, folder: Path, broker: Broker, *, models: Path, model: str, frames: int) -> LateResults | None:
    """Plays a drive in real time over a slow link with the presenter `warp`, for a model that returns masks.

    Returns None if no frame had an output in time, for example on a machine that is too busy.

    The worker returns answers that the model computed before, each after the same time, so that the age of the
    results does not depend on the speed of this machine.

    Raises:
        SkylaneError: the run failed.
    """
    answers = answers_file(PlaybackSettings(bag, models, model, frames=frames), Path("runs") / "answers")
    settings = NullWorkerSettings("fixed-time", model, think_ms=_INFERENCE_MS, models=models, answers=(answers,))
    with (
        NullWorkerProcess(broker.url, settings),
        Link(_LINK, broker.listener.host, broker.listener.port) as link,
    ):
        config = EdgeConfig(
            broker=link.url,
            vehicle="demo-late",
            model=model,
            frames=frames,
            present="warp",
            out=folder,
            sinks=("png",),
        )
        if code := run(str(bag), config, Console(quiet=True)):
            raise BenchError(f"the run in {folder} failed with code {code}")
    return _compare(folder, bag, Repository(models).find(model).card(), config)


def _compare(folder: Path, bag: Path, card: ModelCard, config: EdgeConfig) -> LateResults | None:
    """Draws and scores, at each frame of a run with the PNG sink, the newest result and what the presenter made of it."""
    rows = {row.frame_stamp_ns: row for row in read_presented(folder)}
    ages_ns = [row.age_ns for row in rows.values() if row.age_ns is not None]
    if not ages_ns:
        return None
    indexes = {row.tick: row.frame_index for row in rows.values()}
    held, moved = (StreamingScores(card.labels.names) for _ in range(2))
    video_format = VIDEO_FORMATS[config.video_codec]
    path = folder / f"held_beside_moved{video_format.suffix}"
    with ExitStack() as stack:
        video: VideoFile | None = None
        truth: Frame | None = None
        for frame, truth in islice(_frames(bag), config.frames):
            image, geometry = prepared(frame.pixels, frame.layout, card)
            if card.layout is Layout.BGR8:
                image = image[..., ::-1]
            row = rows[frame.stamp_ns]
            source = None if row.source_sequence is None else indexes[row.source_sequence]
            panels = []
            for title, scores, results, index in (
                ("newest result, held", held, folder, source),
                ("moved to now (--present warp)", moved, folder / OUTPUTS_FOLDER, row.frame_index),
            ):
                mask = _stored_mask(results, row.camera, index)
                if truth is not None:
                    _score(scores, np.asarray(truth.pixels, np.uint8), mask, geometry, row)
                panels.append(_panel(image, mask, geometry, card, [title, _age(row)]))
            both = mark_untrained(np.concatenate(panels, axis=1), card)
            if video is None:
                video = stack.enter_context(closing(VideoFile(path, video_format, both, frame.source_ns)))
            video.add(both, frame.source_ns)
    age_ms = float(np.median(ages_ns)) / 1e6
    if truth is None:
        return LateResults(path, age_ms, "")
    outputs = [row for row in rows.values() if row.age_ns is not None]
    late_ms = float(np.median([(row.presented_ns or 0) - (row.due_ns or 0) for row in outputs])) / 1e6
    text = f"; mean IoU for the tick {held.accuracy():.2f} and {moved.accuracy():.2f} on this synthetic drive, ready "
    return LateResults(path, age_ms, f"{text}{late_ms:.0f} ms after due (p50)")


def _frames(recording: Path) -> Iterator[tuple[Frame, Frame | None]]:
    """Yields the images of the first camera with their true labels, which only bags have."""
    if kind_of(str(recording)) != "bag":
        with closing(open_source(str(recording))) as source:
            yield from ((frame, None) for frame in source.frames() if isinstance(frame, Frame))
        return
    camera, truth, _ = labelled_camera(recording, None)
    with closing(BagSource(recording, topics=[camera, truth])) as source:
        yield from images_with_labels(source, camera, TimestampMatcher())


def _stored_mask(folder: Path, camera: str, index: int | None) -> Mask | None:
    """Reads a mask (H×W, uint8) of the PNG sink; None if the frame has no mask."""
    file = folder / "masks" / camera_name(camera) / f"{index or 0:06d}.png"
    if index is None or not file.exists():
        return None
    return read_mask(file)


def _score(scores: StreamingScores, truth: Mask, mask: Mask | None, geometry: Geometry, row: PresentedRow) -> None:
    if mask is not None:
        scores.add(truth, to_source(mask, geometry, UNSEEN), origin=row.origin, age_ns=row.age_ns or 0)


def _panel(image: ImageArray, mask: Mask | None, geometry: Geometry, card: ModelCard, lines: list[str]) -> ImageArray:
    """Returns the image, in the proportions of the recording, with its mask (if any) and lines of text drawn on it."""
    height = image.shape[0] * geometry.crop_height / geometry.paste_height
    width = image.shape[1] * geometry.crop_width / geometry.paste_width
    small = resized(image, _WIDTH, round(height * _WIDTH / width))
    if mask is not None:
        mask = np.asarray(cv2.resize(mask, small.shape[1::-1], interpolation=cv2.INTER_NEAREST), np.uint8)
        small = overlay(small, mask, card.labels, _OPACITY)
    return draw_lines(small, lines)


def _age(row: PresentedRow) -> str:
    return "no result yet" if row.age_ns is None else f"computed from the image {row.age_ns / 1e6:.0f} ms ago"
