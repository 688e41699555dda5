"""The part of `skylane demo` that shows late results: the same drive in real time over a slow link, held beside warped."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.harness.child import BenchError
from bench.link.link import Link, LinkSpec
from bench.load.null_worker import NullWorkerProcess, NullWorkerSettings
from bench.load.playback import PlaybackSettings
from bench.study.execution.fixed_answers import answers_file
from edge.config import EdgeConfig
from edge.pipeline import colour_image
from edge.run import run
from edge.sinks.rendering import mark_untrained, resized
from edge.sinks.video import VideoFile
from edge.sinks.video_codec import VIDEO_FORMATS
from edge.sources.opening import open_source
from shared.broker.broker import Broker
from shared.imaging import geometry
from shared.imaging.drawing import draw_lines
from shared.imaging.frames import Frame, Layout
from shared.imaging.image_files import ImageArray
from shared.imaging.labels import overlay
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.topics import camera_name
from shared.models.repository import Repository
from shared.runlog.presented_log import PresentedRow, read_presented

# Together with encoding and transport about 170 ms: with ten frames a second, the newest result is two frames old.
_LINK = LinkSpec(delay_ms=50)
_INFERENCE_MS = 50.0
_WIDTH = 640  # Of each of the two pictures, pixels.
_OPACITY = 0.55


def play_late(bag: Path, folder: Path, broker: Broker, *, models: Path, model: str, frames: int) -> Path:
    """Plays a drive in real time over a slow link with the presenter `warp`; returns a video of held beside warped masks.

    The worker gives the answers that the model has computed before, each after the same time, so that the age of the
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
    return write_side_by_side(folder, bag, Repository(models).find(model).card(), config)


def write_side_by_side(folder: Path, bag: Path, card: ModelCard, config: EdgeConfig) -> Path:
    """Writes a video of a run with a presenter and the PNG sink; returns its path.

    On the left is the newest result that had arrived at each frame, on the right the presenter's output.
    """
    rows = {row.frame_index: row for row in read_presented(folder)}
    indexes = {row.tick: row.frame_index for row in rows.values()}
    video_format = VIDEO_FORMATS[config.video_codec]
    path = folder / f"held_beside_{config.present}{video_format.suffix}"
    video: VideoFile | None = None
    for frame, image in _images(bag, card, config):
        row = rows[frame.index]
        name = Path(camera_name(row.camera)) / "{:06d}.png"
        held, output = None, None
        if row.source_sequence is not None:
            held = folder / "masks" / str(name).format(indexes[row.source_sequence])
            output = folder / "presented" / "masks" / str(name).format(frame.index)
        left = _panel(image, held, card, ["newest result, held", _age(row)])
        right = _panel(image, output, card, ["moved to now (--present warp)", _age(row)])
        both = mark_untrained(np.concatenate((left, right), axis=1), card)
        if video is None:
            video = VideoFile(path, video_format, both, frame.source_ns)
        video.add(both, frame.source_ns)
    if video is None:
        raise BenchError(f"{bag} has no readable frame")
    video.close()
    return path


def _images(bag: Path, card: ModelCard, config: EdgeConfig) -> Iterator[tuple[Frame, ImageArray]]:
    """Yields the frames of a run with the model's input as RGB."""
    with closing(open_source(str(bag))) as source:
        for frame in source.frames():
            if frame.index == config.frames:
                return
            if isinstance(frame, Frame):
                colour, plan = colour_image(frame, card, config)
                image: Any = geometry.apply(colour, plan)
                yield frame, image[..., ::-1] if card.layout is Layout.BGR8 else image


def _panel(image: ImageArray, mask_file: Path | None, card: ModelCard, lines: list[str]) -> ImageArray:
    """Returns the image with the mask of a file drawn on it, or alone, above lines of text."""
    small = resized(image, _WIDTH, round(image.shape[0] * _WIDTH / image.shape[1]))
    if mask_file is not None:
        mask: Any = cv2.imread(str(mask_file), cv2.IMREAD_UNCHANGED)
        mask = cv2.resize(mask, small.shape[1::-1], interpolation=cv2.INTER_NEAREST)
        small = overlay(small, mask, card.labels, _OPACITY)
    return draw_lines(small, lines)


def _age(row: PresentedRow) -> str:
    return "no result yet" if row.age_ns is None else f"computed from the image {row.age_ns / 1e6:.0f} ms ago"
