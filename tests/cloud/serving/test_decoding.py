import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from cloud.models.model import Model
from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.decoding import Decoder
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.serving.served_models import Lane, Serving
from shared import clock
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, apply, plan
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.labels import Labels
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status, pack_frame
from shared.messages.frame_header import peek
from shared.messages.model_card import ModelCard, Task
from shared.messages.topics import FrameId
from shared.stages import Stage, Stamp

WAIT_S = 60.0
HEIGHT, WIDTH = 8, 12
CARD = ModelCard(
    "tiny", "1", "ab" * 32, Task.SEGMENTATION, HEIGHT, WIDTH, Layout.BGR8, Resize.CROP, Labels(("a",), ((0, 0, 0),)), trained=True
)  # fmt: skip
RGB = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def _frame(codec: str = "raw", layout: Layout = Layout.RGB8) -> FrameMessage:
    pixels = RGB if layout.channels == 3 else RGB[..., 0]
    return FrameMessage(
        id=FrameId("car", "left", "s1", 7),
        model="tiny",
        layout=layout,
        shape=pixels.shape,
        codec=codec,
        geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
        frame_stamp_ns=0,
        data=bytes(image_codecs.encode(pixels, layout, codec, 95)),
    )


class Places:
    """A batcher's places, and what is put into them."""

    def __init__(self, out: "queue.SimpleQueue[Request | ResultMessage]") -> None:
        self.put = out.put
        self.expected_latency_ns = 0
        self.free = 1

    def reserve(self) -> bool:
        """See Batcher."""
        self.free -= 1
        return True

    def release(self) -> None:
        """See Batcher."""
        self.free += 1


class Bench:
    """A decoder in its thread, and what comes out of it on either side."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.out: queue.SimpleQueue[Request | ResultMessage] = queue.SimpleQueue()
        self.places = Places(self.out)
        serving = Serving()
        serving.place(Lane(cast("Model", SimpleNamespace(card=CARD)), cast("Batcher", self.places)))
        self.decoder = Decoder(self.admission, Replier("w", "cloud/w/s9"), serving, ImageLimits(max_pixels=1 << 16))

    def decode(self, payload: bytes, *, received_ns: int | None = None) -> Request | ResultMessage:
        """What becomes of a payload: a request with its picture, or a refusal."""
        self.admission.offer(self.request(payload, received_ns=received_ns))
        return self.out.get(timeout=WAIT_S)

    def request(self, payload: bytes, *, received_ns: int | None = None) -> Request:
        """A frame that has come."""
        return Request(
            payload=payload,
            vehicle="car",
            camera="left",
            model="tiny",
            answer=self.out.put,
            times={Stage.RECEIVED: received_ns or clock.now_ns()},
            max_reply_bytes=1 << 20,
            correlation=FrameId("car", "left", "s1", 7),
            head=peek(payload),
        )


@contextmanager
def _bench() -> Iterator[Bench]:
    bench = Bench()
    thread = threading.Thread(target=bench.decoder.run)
    thread.start()
    try:
        yield bench
    finally:
        bench.admission.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("codec", ["raw", "png", "lz4", "zstd"])
def test_a_frame_becomes_the_models_input(codec: str) -> None:
    """In the model's colour order, whatever the vehicle sent; each stage stamped."""
    with _bench() as bench:
        request = bench.decode(pack_frame(_frame(codec)))
    assert isinstance(request, Request)
    np.testing.assert_array_equal(request.picture, RGB[..., ::-1])
    assert request.picture.flags.c_contiguous
    assert list(request.times) == [Stage.RECEIVED, Stage.DEQUEUED, Stage.DECODED]
    assert list(request.times.values()) == sorted(request.times.values())
    assert request.payload == b""


def test_a_jpeg_is_decoded_too() -> None:
    """The usual codec; nearly the same picture."""
    with _bench() as bench:
        request = bench.decode(pack_frame(_frame("jpeg")))
    assert isinstance(request, Request)
    assert request.picture.shape == (HEIGHT, WIDTH, 3)


def _whole(height: int, width: int, resize: Resize = Resize.CROP, *, binned: bool = False) -> FrameMessage:
    """A frame that is left to the worker to resize."""
    sides = (height // 2, width // 2) if binned else (height, width)
    pixels = np.random.default_rng(height).integers(0, 256, (*sides, 3), np.uint8)
    return replace(
        _frame(), shape=pixels.shape, geometry=plan(resize, height, width, HEIGHT, WIDTH), data=pixels.tobytes()
    )


def test_a_mask_may_be_no_larger_than_a_picture_may() -> None:
    """A few pixels that say they were cut from 67 million would have a mask made of as many."""
    huge = replace(_frame(), geometry=plan(Resize.STRETCH, 300, 300, HEIGHT, WIDTH))
    with _bench() as bench:
        answer = bench.decode(pack_frame(replace(huge, want=RequestOptions(size="frame"))))
        assert isinstance(bench.decode(pack_frame(huge)), Request)  # Of the model's size it is as small as ever.
    assert isinstance(answer, ResultMessage)
    assert answer.status is Status.REJECTED
    assert "a mask of 300×300 would have more than 65536 pixels" in answer.reason


@pytest.mark.parametrize("resize", list(Resize))
def test_whole_frames_of_any_size_become_the_models_input(resize: Resize) -> None:
    """Mixed sizes follow each other; each is, to the last pixel, what the vehicle would have made of it."""
    with _bench() as bench:
        for height, width in ((40, 30), (HEIGHT, WIDTH), (5, 7), (1, 90), (64, 96)):
            for binned in (False, True):
                if binned and min(height, width) < 2:
                    continue
                message = _whole(height, width, resize, binned=binned)
                request = bench.decode(pack_frame(message))
                assert isinstance(request, Request), request
                pixels = np.frombuffer(message.data, np.uint8).reshape(message.shape)
                np.testing.assert_array_equal(request.picture, apply(pixels, message.geometry)[..., ::-1])
                assert request.picture.flags.c_contiguous


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"crop_top": 2}, "geometry is not what crop, letterbox, stretch make of 40×30"),
        ({"paste_height": 1, "paste_width": 1}, "geometry is not what crop"),
        ({"crop_height": 1, "crop_width": 1}, "geometry is not what crop"),
        ({"source_height": 41}, r"or the whole frame, 41×30×3 by its geometry"),
        ({"source_height": 4000, "source_width": 3000}, "or the whole frame, 4000×3000×3"),
        ({"source_height": 60_000, "source_width": 60_000}, "source is 60000×60000"),
        ({"target_height": 9}, "geometry ends at 9×12: the input of model tiny is 8×12"),
        ({"crop_left": 60}, "crop_width is"),
        ({"crop_height": 0}, "crop_height is"),
    ],
)
def test_a_geometry_of_the_senders_own_invention_is_refused(change: dict[str, int], reason: str) -> None:
    """The worker does no work that no vehicle of ours would ask for; the next frame is served."""
    whole = msgpack.unpackb(pack_frame(_whole(40, 30)))
    with _bench() as bench:
        refusal = bench.decode(msgpack.packb(whole | {"geometry": whole["geometry"] | change}))
        assert isinstance(refusal, ResultMessage)
        assert refusal.status is Status.REJECTED
        assert re.search(reason, refusal.reason), refusal.reason
        assert isinstance(bench.decode(pack_frame(_whole(40, 30))), Request)


def test_a_whole_frame_is_bounded_before_it_is_decoded() -> None:
    """A picture that may be of any size must not be of every size."""
    huge = replace(
        _whole(300, 300),
        codec="zstd",
        data=image_codecs.encode(np.zeros((300, 300, 3), np.uint8), Layout.RGB8, "zstd", 1),
    )
    with _bench() as bench:
        refusal = bench.decode(pack_frame(huge))
    assert isinstance(refusal, ResultMessage)
    assert "at most 65536 pixels" in refusal.reason


def test_a_budget_is_counted_from_the_receipt() -> None:
    """Two clocks need not agree; what is used up is not worth decoding, and its answer echoes its stamps all the same."""
    with _bench() as bench:
        frame = replace(_frame(), budget_ms=500, attempt=2, stamps=(Stamp("due", "edge/car/s1", 1),))
        late = bench.decode(pack_frame(frame), received_ns=clock.now_ns() - 501_000_000)
        assert isinstance(late, ResultMessage)
        assert (late.status, late.reason) == (Status.EXPIRED, "its budget ended while it waited")
        assert (late.attempt, late.stamps[0], late.stamps[-1].stage) == (2, frame.stamps[0], Stage.REPLIED)
        assert Stage.DECODED not in {stamp.stage for stamp in late.stamps}
        assert isinstance(bench.decode(pack_frame(replace(frame, budget_ms=500_000))), Request)


def test_a_frame_that_would_be_inferred_too_late_is_not_decoded() -> None:
    """What the worker can do goes to frames that it can answer in time."""
    with _bench() as bench:
        bench.places.expected_latency_ns = 600 * 10**9
        late = bench.decode(pack_frame(replace(_frame(), budget_ms=500_000)))
        assert isinstance(late, ResultMessage)
        assert (late.status, late.reason) == (Status.EXPIRED, "its inference would end after its budget")
        assert isinstance(bench.decode(pack_frame(_frame())), Request)


def test_a_model_or_version_that_is_not_served_is_refused() -> None:
    """The refusal names what is; a version that stands behind the picture is not looked for."""
    with _bench() as bench:
        assert isinstance(bench.decode(pack_frame(replace(_frame(), version="1"))), Request)
        for change in ({"version": "2"}, {"version": 7}):
            refusal = bench.decode(msgpack.packb(msgpack.unpackb(pack_frame(_frame())) | change))
            assert isinstance(refusal, ResultMessage)
            assert refusal.status is Status.REJECTED
        behind = msgpack.unpackb(pack_frame(_frame()))
        del behind["version"]
        refusal = bench.decode(msgpack.packb(behind | {"version": "1"}))
        assert isinstance(refusal, ResultMessage)
        assert "tell it before" in refusal.reason


def test_a_place_is_given_back_where_a_frame_is_refused() -> None:
    """Or a few broken frames would close the lane for all."""
    with _bench() as bench:
        bench.decode(pack_frame(replace(_frame(), data=b"short")))
        assert bench.places.free == 1
        bench.decode(pack_frame(_frame()))
        assert bench.places.free == 0


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [HEIGHT, WIDTH + 1, 3]},
        {"shape": [16384, 16384, 3]},
        {"layout": "mono8", "shape": [HEIGHT, WIDTH], "data": bytes(96)},
        {"data": bytes(10)},
        {"codec": "zstd", "data": b"\x28\xb5\x2f\xfd" + bytes(20)},
        {"codec": "jpeg", "data": b"\xff\xd8\xff" + bytes(20)},
        {"model": "other"},
        {"id": "bus/left/s1/7"},
        {"want": {"mask_codec": "x" * 4000}},
        {"geometry": asdict(plan(Resize.CROP, 8, 8, 4, 4))},
    ],
    ids=["size", "huge", "grey", "short", "zstd", "jpeg", "model", "vehicle", "mask codec", "geometry"],
)
def test_what_does_not_fit_is_rejected_under_the_senders_own_id(change: dict[str, object]) -> None:
    """And the next frame is served."""
    with _bench() as bench:
        refusal = bench.decode(msgpack.packb(msgpack.unpackb(pack_frame(_frame())) | change))
        assert isinstance(refusal, ResultMessage)
        assert (refusal.status, str(refusal.id)) == (Status.REJECTED, "car/left/s1/7")
        assert isinstance(bench.decode(pack_frame(_frame())), Request)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_frame_is_answered_whatever_is_damaged(data: st.DataObject) -> None:
    """Truncated, flipped bits, bytes put in: an answer with a reason or a picture, never a dead thread."""
    codec = data.draw(st.sampled_from(["raw", "png", "jpeg", "lz4", "zstd"]))
    damaged = bytearray(pack_frame(_frame(codec)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                damaged[place] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del damaged[max(1, place) :]
            case _:
                damaged[place:place] = data.draw(st.binary(min_size=1, max_size=4))
    with _bench() as bench:
        found = bench.decode(bytes(damaged))
        if isinstance(found, ResultMessage):
            assert found.status in (Status.REJECTED, Status.EXPIRED)
            assert found.reason
        else:
            assert found.picture.shape == (HEIGHT, WIDTH, 3)
            assert found.picture.dtype == np.uint8
