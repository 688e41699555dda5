"""Preparation of frames for a model."""

import threading
from pathlib import Path

import numpy as np
import pytest

from edge.config import EdgeConfig
from edge.pacing import FrameQueue
from edge.pipeline import Pipeline, PreparedImages, prepare
from edge.reuse.opening import Reuse
from edge.reuse.step import ReuseStep
from edge.sinks.writer import SinkWriter
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout, Pixels
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.messages.frame import FrameMessage
from shared.messages.results import ModelResult
from shared.messages.topics import FRAMES
from shared.reuse.gate import DifferenceGate, GateSettings
from shared.stages import Stage
from tests.edge.samples import CARD, HEIGHT, WIDTH, make_frame, make_record
from tests.edge.vehicle import Vehicle
from tests.support.memory_bus import MemoryBus


def _frame(height: int, width: int, layout: Layout) -> Frame:
    shape = layout.shape(height, width)
    pixels = np.random.default_rng(3).integers(0, 256, shape).astype(layout.dtype)
    return Frame(pixels, layout, "/left", 0, 0, 0, 0)


def _decoded(message: FrameMessage) -> Pixels:
    return image_codecs.decode(
        message.data, message.codec, message.layout, message.shape, ImageLimits(), message.layout
    )


@pytest.mark.parametrize("codec", ["raw", "png", "lz4", "zstd"])
def test_lossless_codecs_send_exactly_the_models_input(codec: str) -> None:
    """The image has the model's size and colour order."""
    frame = _frame(HEIGHT, WIDTH, Layout.BGR8)
    record = make_record()
    message = prepare(frame, record, CARD, EdgeConfig(codec=codec))
    np.testing.assert_array_equal(_decoded(message), frame.pixels[..., ::-1])
    assert record.image is not None
    np.testing.assert_array_equal(record.image, frame.pixels[..., ::-1])
    assert (message.layout, message.shape) == (Layout.RGB8, (HEIGHT, WIDTH, 3))
    assert list(record.times) == [Stage.DUE, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED]


def test_a_frame_of_twice_the_size_is_binned() -> None:
    """Binning 1936×1216 to 968×608 interpolates no pixels that resizing would discard."""
    frame = _frame(2 * HEIGHT, 2 * WIDTH, Layout.BAYER_GBRG8)
    message = prepare(frame, make_record(), CARD, EdgeConfig(codec="raw"))
    np.testing.assert_array_equal(_decoded(message), to_colour(frame.pixels, frame.layout, Layout.RGB8, "binning"))
    assert (message.geometry.source_height, message.geometry.source_width) == (2 * HEIGHT, 2 * WIDTH)


def test_a_frame_of_less_than_twice_the_size_keeps_its_resolution() -> None:
    """Binning would discard detail that the model can use."""
    frame = _frame(HEIGHT, WIDTH, Layout.BAYER_RGGB8)
    message = prepare(frame, make_record(), CARD, EdgeConfig(codec="raw"))
    np.testing.assert_array_equal(_decoded(message), to_colour(frame.pixels, frame.layout, Layout.RGB8, "bilinear"))


@pytest.mark.parametrize("resize", list(Resize))
def test_the_message_contains_the_resize_geometry(resize: Resize) -> None:
    """The configured mode takes precedence over the model card."""
    frame = _frame(40, 40, Layout.RGB8)
    message = prepare(frame, make_record(), CARD, EdgeConfig(resize=resize))
    plan = message.geometry
    assert (plan.target_height, plan.target_width) == (HEIGHT, WIDTH)
    assert (plan.crop_height < 40) == (resize is Resize.CROP)
    assert (plan.paste_width < WIDTH) == (resize is Resize.LETTERBOX)


@pytest.mark.parametrize(("size", "sent"), [((40, 50), (20, 25)), ((14, 20), (14, 20)), ((6, 6), (6, 6))])
def test_a_frame_that_the_worker_resizes_is_sent_in_full_size(size: tuple[int, int], sent: tuple[int, int]) -> None:
    """With its geometry, the worker gets exactly the pixels that the vehicle would have sent."""
    frame = _frame(*size, Layout.BAYER_RGGB8)
    here = prepare(frame, make_record(), CARD, EdgeConfig(codec="raw"))
    record = make_record()
    there = prepare(frame, record, CARD, EdgeConfig(codec="raw", resize_at="cloud"))
    assert there.geometry == here.geometry
    assert there.shape == (*sent, 3)
    np.testing.assert_array_equal(geometry.apply(_decoded(there), there.geometry), _decoded(here))
    assert list(record.times) == [Stage.DUE, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED]


def test_an_unsupported_demosaicing_is_an_error() -> None:
    """The frame is dropped with this reason."""
    frame = _frame(2 * HEIGHT, 2 * WIDTH, Layout.BAYER_RGGB16)
    with pytest.raises(SkylaneError, match="8"):
        prepare(frame, make_record(), CARD, EdgeConfig(demosaic="vng"))


def test_preparation_starts_no_threads() -> None:
    """Work in other threads would make the times of the stages wrong."""
    before = threading.active_count()
    frame = _frame(2 * HEIGHT, 2 * WIDTH, Layout.BAYER_RGGB8)
    prepare(frame, make_record(), CARD, EdgeConfig())
    assert threading.active_count() == before


def test_in_an_open_loop_the_gate_sends_frames_until_the_window_is_full(tmp_path: Path) -> None:
    """A frame without a result waits neither for room nor for the frames before it."""
    gate = DifferenceGate[ModelResult](GateSettings("mse", 1.0, reuse_frames=100, reuse_ms=10_000.0))
    with MemoryBus() as bus:
        car, queue, config = Vehicle(bus, tmp_path, CARD, window=2), FrameQueue(3), EdgeConfig(codec="raw")
        bus.subscribe(FRAMES.filter(model="tiny"), 1, lambda _: None)
        car.announce()
        for index in range(3):
            frame = make_frame(index)
            queue.put(car.ledger.begin(frame, clock.now_ns()), frame)
        queue.close()
        step = ReuseStep(Reuse(gate, None, {}), car.ledger, SinkWriter([], CARD), CARD, waits_for_room=False)
        images = PreparedImages()
        Pipeline(queue, car.window, car.sender, car.ledger, CARD, config, config.want, images, step).run()
        car.settle()
        assert car.window.in_flight == 2
        assert [(row["sequence"], row["reason"]) for row in car.rows()] == [("2", "window")]
        car.log.__exit__()
