import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edge.pipeline import Preparation, prepare
from edge.reliability.ledger import FrameRecord, Ledger
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout, Pixels
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.runlog.latency_log import LogWriter
from shared.stages import Stage

HEIGHT, WIDTH = 8, 12


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[Frame], FrameRecord]]:
    """Makes a frame's journey."""
    with LogWriter(tmp_path) as log:
        ledger = Ledger(log, vehicle="car", session="s1", model="tiny")

        def start(frame: Frame) -> FrameRecord:
            journey = ledger.begin(frame, 0)
            journey.times[Stage.TAKEN] = 1
            return journey

        yield start


def _frame(height: int, width: int, layout: Layout) -> Frame:
    shape = layout.shape(height, width)
    pixels = np.random.default_rng(3).integers(0, 256, shape).astype(layout.dtype)
    return Frame(pixels, layout, "/left", 0, 0, 0, 0)


def _sent(message: FrameMessage) -> Pixels:
    return image_codecs.decode(
        message.data, message.codec, message.layout, message.shape, ImageLimits(), message.layout
    )


@pytest.mark.parametrize("codec", ["raw", "png", "lz4", "zstd"])
def test_what_is_sent_is_what_the_model_is_to_see(
    card: ModelCard, begin: Callable[[Frame], FrameRecord], codec: str
) -> None:
    """In the model's size and colour order, lossless where nothing lossy was chosen."""
    frame = _frame(HEIGHT, WIDTH, Layout.BGR8)
    journey = begin(frame)
    message = prepare(frame, journey, Preparation(card, codec=codec))
    np.testing.assert_array_equal(_sent(message), frame.pixels[..., ::-1])
    assert journey.picture is not None
    np.testing.assert_array_equal(journey.picture, frame.pixels[..., ::-1])
    assert (message.layout, message.shape) == (Layout.RGB8, (HEIGHT, WIDTH, 3))
    assert list(journey.times) == [Stage.DUE, Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED]


def test_a_frame_of_twice_the_size_is_binned(card: ModelCard, begin: Callable[[Frame], FrameRecord]) -> None:
    """1936×1216 to 968×608 in one pass, without inventing the pixels that are then thrown away."""
    frame = _frame(2 * HEIGHT, 2 * WIDTH, Layout.BAYER_GBRG8)
    message = prepare(frame, begin(frame), Preparation(card, codec="raw"))
    np.testing.assert_array_equal(_sent(message), to_colour(frame.pixels, frame.layout, Layout.RGB8, "binning"))
    assert (message.geometry.source_height, message.geometry.source_width) == (2 * HEIGHT, 2 * WIDTH)


def test_a_frame_of_less_than_twice_the_size_keeps_its_resolution(
    card: ModelCard, begin: Callable[[Frame], FrameRecord]
) -> None:
    """Binning would throw away what the model could still see."""
    frame = _frame(HEIGHT, WIDTH, Layout.BAYER_RGGB8)
    message = prepare(frame, begin(frame), Preparation(card, codec="raw"))
    np.testing.assert_array_equal(_sent(message), to_colour(frame.pixels, frame.layout, Layout.RGB8, "bilinear"))


@pytest.mark.parametrize("resize", list(Resize))
def test_the_geometry_that_was_made_travels_along(
    card: ModelCard, begin: Callable[[Frame], FrameRecord], resize: Resize
) -> None:
    """The model card's, unless the user says otherwise."""
    frame = _frame(40, 40, Layout.RGB8)
    message = prepare(frame, begin(frame), Preparation(card, resize=resize))
    plan = message.geometry
    assert (plan.target_height, plan.target_width) == (HEIGHT, WIDTH)
    assert (plan.crop_height < 40) == (resize is Resize.CROP)
    assert (plan.paste_width < WIDTH) == (resize is Resize.LETTERBOX)


@pytest.mark.parametrize(("size", "sent"), [((40, 50), (20, 25)), ((14, 20), (14, 20)), ((6, 6), (6, 6))])
def test_a_frame_for_the_worker_to_resize_is_sent_as_large_as_it_is(
    card: ModelCard, begin: Callable[[Frame], FrameRecord], size: tuple[int, int], sent: tuple[int, int]
) -> None:
    """With the geometry that makes it, to the last pixel, into what the vehicle would have sent."""
    frame = _frame(*size, Layout.BAYER_RGGB8)
    here = prepare(frame, begin(frame), Preparation(card, codec="raw"))
    journey = begin(frame)
    there = prepare(frame, journey, Preparation(card, codec="raw", resize_at="cloud"))
    assert there.geometry == here.geometry
    assert there.shape == (*sent, 3)
    np.testing.assert_array_equal(geometry.apply(_sent(there), there.geometry), _sent(here))
    assert list(journey.times) == [Stage.DUE, Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED]


def test_what_cannot_be_demosaiced_as_asked_is_told(card: ModelCard, begin: Callable[[Frame], FrameRecord]) -> None:
    """The frame is dropped with that reason."""
    frame = _frame(2 * HEIGHT, 2 * WIDTH, Layout.BAYER_RGGB16)
    with pytest.raises(SkylaneError, match="8"):
        prepare(frame, begin(frame), Preparation(card, demosaic="vng"))


def test_preparing_is_done_in_the_callers_thread(card: ModelCard, begin: Callable[[Frame], FrameRecord]) -> None:
    """Its stages are stamped one after the other; a pool behind them would make the stamps lie."""
    before = threading.active_count()
    frame = _frame(2 * HEIGHT, 2 * WIDTH, Layout.BAYER_RGGB8)
    prepare(frame, begin(frame), Preparation(card))
    assert threading.active_count() == before
