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
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.decoding import Decoder
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.serving.served_models import ServedModel, ServedModels
from shared import clock
from shared.clock import Deadline
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, apply, plan
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.labels import Labels
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status, pack_frame, peek
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.stages import Stage, Stamp
from tests.support.cloud_requests import make_request

WAIT_S = 60.0
HEIGHT, WIDTH = 8, 12
CARD = ModelCard(
    "tiny", "1", "ab" * 32, "segmentation", HEIGHT, WIDTH, Layout.BGR8, Resize.CROP, Labels(("a",), ((0, 0, 0),)), trained=True
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
        stamp_ns=0,
        data=bytes(image_codecs.encode(pixels, layout, codec, 95)),
    )


class Slots:
    """The slots of a batcher."""

    def __init__(self, out: "queue.SimpleQueue[Request | ResultMessage]") -> None:
        self.put = out.put
        self.latency_ns = 0
        self.free = 1

    def can_meet(self, deadline: Deadline) -> bool:
        """See Batcher."""
        return not deadline.is_expired(clock.now_ns() + self.latency_ns)

    def count_refusal(self) -> None:
        """See Batcher."""

    def reserve(self) -> bool:
        """See Batcher."""
        self.free -= 1
        return True

    def release(self) -> None:
        """See Batcher."""
        self.free += 1


class Rig:
    """A decoder, its decoded frames and its refusals."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.out: queue.SimpleQueue[Request | ResultMessage] = queue.SimpleQueue()
        self.slots = Slots(self.out)
        serving = ServedModels()
        serving.set_current(ServedModel(cast("Model", SimpleNamespace(card=CARD)), cast("Batcher", self.slots)))
        self.decoder = Decoder(self.admission, Replier("w", "cloud/w/s9"), serving, ImageLimits(max_pixels=1 << 16))

    def decode(self, payload: bytes, *, received_ns: int | None = None) -> Request | ResultMessage:
        """Returns the request with its image, or the refusal."""
        self.admission.offer(self.request(payload, received_ns=received_ns))
        return self.out.get(timeout=WAIT_S)

    def request(self, payload: bytes, *, received_ns: int | None = None) -> Request:
        """A request with this payload."""
        return make_request(
            payload=payload,
            reply=self.out.put,
            times={Stage.RECEIVED: received_ns or clock.now_ns()},
            correlation=FrameId("car", "left", "s1", 7),
            header=peek(payload, received_ns),
        )


@contextmanager
def _rig() -> Iterator[Rig]:
    rig = Rig()
    thread = threading.Thread(target=rig.decoder.run)
    thread.start()
    try:
        yield rig
    finally:
        rig.admission.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("codec", ["raw", "png", "lz4", "zstd"])
def test_a_frame_becomes_the_models_input(codec: str) -> None:
    """The image is in the colour order of the model, and each stage has a time."""
    with _rig() as rig:
        request = rig.decode(pack_frame(_frame(codec)))
    assert isinstance(request, Request)
    np.testing.assert_array_equal(request.image, RGB[..., ::-1])
    assert request.image.flags.c_contiguous
    assert list(request.times) == [Stage.RECEIVED, Stage.DEQUEUED, Stage.DECODED]
    assert list(request.times.values()) == sorted(request.times.values())
    assert request.payload == b""


def test_a_jpeg_is_decoded() -> None:
    """JPEG is the usual codec."""
    with _rig() as rig:
        request = rig.decode(pack_frame(_frame("jpeg")))
    assert isinstance(request, Request)
    assert request.image.shape == (HEIGHT, WIDTH, 3)


def _whole(height: int, width: int, resize: Resize = Resize.CROP, *, binned: bool = False) -> FrameMessage:
    """A frame that the worker must resize."""
    sides = (height // 2, width // 2) if binned else (height, width)
    pixels = np.random.default_rng(height).integers(0, 256, (*sides, 3), np.uint8)
    return replace(
        _frame(), shape=pixels.shape, geometry=plan(resize, height, width, HEIGHT, WIDTH), data=pixels.tobytes()
    )


def test_the_size_of_a_mask_is_limited() -> None:
    """A small message can claim that its image was cut from a huge frame, whose mask would be as large."""
    huge = replace(_frame(), geometry=plan(Resize.STRETCH, 300, 300, HEIGHT, WIDTH))
    with _rig() as rig:
        answer = rig.decode(pack_frame(replace(huge, options=RequestOptions(size="frame"))))
        assert isinstance(rig.decode(pack_frame(huge)), Request)  # The mask of the model's size is small.
    assert isinstance(answer, ResultMessage)
    assert answer.status is Status.REJECTED
    assert "a mask of 300×300 would have more than 65536 pixels" in answer.reason


@pytest.mark.parametrize("resize", list(Resize))
def test_whole_frames_of_any_size_become_the_models_input(resize: Resize) -> None:
    """Frames of different sizes give exactly the pixels that the vehicle would have made."""
    with _rig() as rig:
        for height, width in ((40, 30), (HEIGHT, WIDTH), (5, 7), (1, 90), (64, 96)):
            for binned in (False, True):
                if binned and min(height, width) < 2:
                    continue
                message = _whole(height, width, resize, binned=binned)
                request = rig.decode(pack_frame(message))
                assert isinstance(request, Request), request
                pixels = np.frombuffer(message.data, np.uint8).reshape(message.shape)
                np.testing.assert_array_equal(request.image, apply(pixels, message.geometry)[..., ::-1])
                assert request.image.flags.c_contiguous


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"crop_top": 2}, "geometry is not the result of crop, letterbox, stretch for 40×30"),
        ({"paste_height": 1, "paste_width": 1}, "geometry is not the result of crop"),
        ({"crop_height": 1, "crop_width": 1}, "geometry is not the result of crop"),
        ({"source_height": 41}, r"or the whole frame, 41×30×3 by its geometry"),
        ({"source_height": 4000, "source_width": 3000}, "or the whole frame, 4000×3000×3"),
        ({"source_height": 60_000, "source_width": 60_000}, "source is 60000×60000"),
        ({"target_height": 9}, "geometry ends at 9×12: the input of model tiny is 8×12"),
        ({"crop_left": 60}, "crop_width is"),
        ({"crop_height": 0}, "crop_height is"),
    ],
)
def test_a_geometry_that_no_resize_makes_is_rejected(change: dict[str, int], reason: str) -> None:
    """The next frame is decoded."""
    whole = msgpack.unpackb(pack_frame(_whole(40, 30)))
    with _rig() as rig:
        refusal = rig.decode(msgpack.packb(whole | {"geometry": whole["geometry"] | change}))
        assert isinstance(refusal, ResultMessage)
        assert refusal.status is Status.REJECTED
        assert re.search(reason, refusal.reason), refusal.reason
        assert isinstance(rig.decode(pack_frame(_whole(40, 30))), Request)


def test_the_size_of_a_whole_frame_is_checked_before_decoding() -> None:
    """A small compressed image could be huge."""
    huge = replace(
        _whole(300, 300),
        codec="zstd",
        data=image_codecs.encode(np.zeros((300, 300, 3), np.uint8), Layout.RGB8, "zstd", 1),
    )
    with _rig() as rig:
        refusal = rig.decode(pack_frame(huge))
    assert isinstance(refusal, ResultMessage)
    assert "at most 65536 pixels" in refusal.reason


def test_the_deadline_counts_from_the_arrival() -> None:
    """The clocks of vehicle and worker may differ. The refusal has the stamps of the message."""
    with _rig() as rig:
        frame = replace(_frame(), deadline=Deadline.after_ms(500), attempt=2, stamps=(Stamp("due", "edge/car/s1", 1),))
        late = rig.decode(pack_frame(frame), received_ns=clock.now_ns() - 501_000_000)
        assert isinstance(late, ResultMessage)
        assert (late.status, late.reason) == (Status.EXPIRED, "the deadline passed while the frame waited")
        assert (late.attempt, late.stamps[0], late.stamps[-1].stage) == (2, frame.stamps[0], Stage.REPLIED)
        assert Stage.DECODED not in {stamp.stage for stamp in late.stamps}
        assert isinstance(rig.decode(pack_frame(replace(frame, deadline=Deadline.after_ms(500_000)))), Request)


def test_a_frame_that_would_be_inferred_too_late_is_not_decoded() -> None:
    """The time of the decoder goes to frames that can meet their deadline."""
    with _rig() as rig:
        rig.slots.latency_ns = 600 * 10**9
        late = rig.decode(pack_frame(replace(_frame(), deadline=Deadline.after_ms(500_000))))
        assert isinstance(late, ResultMessage)
        assert (late.status, late.reason) == (Status.EXPIRED, "inference would end after the deadline")
        assert isinstance(rig.decode(pack_frame(_frame())), Request)


def test_an_unknown_model_or_version_is_rejected() -> None:
    """A version field after the image is rejected, because admission reads only the fields before it."""
    with _rig() as rig:
        assert isinstance(rig.decode(pack_frame(replace(_frame(), version="1"))), Request)
        for change in ({"version": "2"}, {"version": 7}):
            refusal = rig.decode(msgpack.packb(msgpack.unpackb(pack_frame(_frame())) | change))
            assert isinstance(refusal, ResultMessage)
            assert refusal.status is Status.REJECTED
        behind = msgpack.unpackb(pack_frame(_frame()))
        del behind["version"]
        refusal = rig.decode(msgpack.packb(behind | {"version": "1"}))
        assert isinstance(refusal, ResultMessage)
        assert "must precede the image" in refusal.reason


def test_a_refused_frame_releases_its_slot() -> None:
    """Otherwise a few broken frames would block the batcher."""
    with _rig() as rig:
        rig.decode(pack_frame(replace(_frame(), data=b"short")))
        assert rig.slots.free == 1
        rig.decode(pack_frame(_frame()))
        assert rig.slots.free == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 9}, "version 9 is not supported: send version 1"),
        ({"shape": [HEIGHT, WIDTH + 1, 3]}, "model tiny needs 8×12×3"),
        ({"shape": [16384, 16384, 3]}, "model tiny needs"),
        ({"layout": "mono8", "shape": [HEIGHT, WIDTH], "data": bytes(96)}, "needs colour, H×W×3"),
        ({"data": bytes(10)}, "bytes"),
        ({"codec": "pickle"}, "pickle"),
        ({"codec": "zstd", "data": b"\x28\xb5\x2f\xfd" + bytes(20)}, "zstd"),
        ({"codec": "jpeg", "data": b"\xff\xd8\xff" + bytes(20)}, "JPEG has no frame header"),
        ({"model": "other"}, "must be those of its topic"),
        ({"id": "bus/left/s1/7"}, "must be those of its topic"),
        ({"id": "car/right/s1/7"}, "must be those of its topic"),
        ({"id": 7}, "'id'"),
        ({"want": {"mask_codec": "x" * 4000}}, "no mask codec"),
        ({"geometry": asdict(plan(Resize.CROP, 8, 8, 4, 4))}, "geometry ends at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_messages_are_rejected_under_the_id_of_the_sender(change: dict[str, object], reason: str) -> None:
    """The sender receives the reason, and the next frame is decoded."""
    with _rig() as rig:
        refusal = rig.decode(msgpack.packb(msgpack.unpackb(pack_frame(_frame())) | change))
        assert isinstance(refusal, ResultMessage)
        assert (refusal.status, str(refusal.id)) == (Status.REJECTED, "car/left/s1/7")
        assert reason in refusal.reason
        assert isinstance(rig.decode(pack_frame(_frame())), Request)


@given(st.data())
def test_a_damaged_message_gets_a_reply_or_is_decoded(data: st.DataObject) -> None:
    """Truncated messages, flipped bits and inserted bytes must not end the thread."""
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
    with _rig() as rig:
        found = rig.decode(bytes(damaged))
        if isinstance(found, ResultMessage):
            assert found.status in (Status.REJECTED, Status.EXPIRED)
            assert found.reason
        else:
            assert found.image.shape == (HEIGHT, WIDTH, 3)
            assert found.image.dtype == np.uint8
