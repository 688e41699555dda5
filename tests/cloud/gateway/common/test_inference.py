"""What the doors of TensorFlow Serving and of the Open Inference Protocol have in common, without either."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import IMAGES, INPUT, RESULTS, Call, Reply, ask, server_timing
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.submission import Door
from cloud.models.manifest import InputSection, Manifest, OutputKind, OutputSection
from cloud.models.model import Model
from cloud.serving.batching import Batcher
from cloud.serving.request import Request
from shared import clock
from shared.imaging import image_codecs, mask_codecs
from shared.imaging.frames import Layout
from shared.messages.frame import Status
from shared.messages.model_card import Task
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import CARD, HEIGHT, WIDTH, Engine, frame, model

WAIT_S = 60.0


class _Gate:
    """Keeps the engine at a batch until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


@pytest.fixture(name="gate")
def _gate() -> _Gate:
    return _Gate()


@pytest.fixture(name="doors")
def _doors(gate: _Gate) -> Iterator[Doors]:
    with open_gateway(model(gate), gateway=GatewaySettings(grpc="127.0.0.1:0"), max_frames=4) as doors:
        yield doors


@pytest.fixture(name="door")
def _door(doors: Doors) -> Door:
    return doors.node.door


def _pixels(count: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)


def _call(inputs: dict[str, Any], **more: Any) -> Call:
    settings = {"door": "test", "caller": "car", "model": "tiny", "max_reply_bytes": 1 << 20, **more}
    return Call(inputs=inputs, received_ns=clock.now_ns(), **settings)


def _answer(door: Door, call: Call) -> Reply:
    asked = ask(door, call)
    for future in asked.futures:
        future.result(WAIT_S)
    return asked.reply()


def test_pixels_come_back_as_the_direct_call_gives_them(door: Door) -> None:
    """Bit by bit, and each picture in its place."""
    pixels = _pixels(3)
    reply = _answer(door, _call({INPUT: pixels}))
    assert list(reply.outputs) == ["mask"]
    np.testing.assert_array_equal(reply.outputs["mask"], pixels[..., 0])


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "png", None])
def test_encoded_pictures_are_read(door: Door, codec: str | None) -> None:
    """By the codec that the caller names, or by what the picture says of itself."""
    pixels = _pixels(2)
    data = [bytes(image_codecs.encode(picture, Layout.RGB8, codec or "png", 85)) for picture in pixels]
    reply = _answer(door, _call({IMAGES: data}, codec=codec))
    np.testing.assert_array_equal(reply.outputs["mask"], pixels[..., 0])


def test_a_picture_of_another_size_is_brought_to_the_models(door: Door) -> None:
    """As a frame of that size is that comes over the broker."""
    large = np.full((3 * HEIGHT, 2 * WIDTH, 3), 77, np.uint8)
    reply = _answer(door, _call({IMAGES: [bytes(image_codecs.encode(large, Layout.RGB8, "png", 85))]}))
    np.testing.assert_array_equal(reply.outputs["mask"], np.full((1, HEIGHT, WIDTH), 77, np.uint8))


def test_results_come_packed_where_they_are_asked_for(door: Door) -> None:
    """A mask as PNG is a fiftieth of its numbers."""
    pixels = _pixels(2)
    reply = _answer(door, _call({INPUT: pixels}, outputs=(RESULTS,)))
    for data, picture in zip(reply.outputs[RESULTS], pixels, strict=True):
        np.testing.assert_array_equal(mask_codecs.decode(bytes(data), "png", (HEIGHT, WIDTH)), picture[..., 0])


def test_a_vehicle_is_told_what_became_of_its_frame(door: Door) -> None:
    """Its row needs the mask message, stamps and all, whatever the protocol around it."""
    message = frame(5)
    reply = _answer(door, _call({IMAGES: [message.data]}, frame=message))
    assert (reply.first.id, reply.first.status) == (message.id, Status.ANSWERED)
    np.testing.assert_array_equal(mask_codecs.decode(bytes(reply.outputs[RESULTS][0]), "raw", (HEIGHT, WIDTH)), 5)
    rejected = _answer(door, _call({IMAGES: [b"short"]}, frame=message))
    assert rejected.first.status is Status.REJECTED
    assert not rejected.outputs


def test_every_answer_tells_the_workers_stages(door: Door) -> None:
    """In the form that browsers and proxies know."""
    reply = _answer(door, _call({INPUT: _pixels(1)}))
    stages = [part.split(";dur=") for part in server_timing(reply.first).split(", ")]
    assert [name for name, _ in stages] == [
        "dequeued", "decoded", "batched", "inferred", "postprocessed", "mask_encoded", "replied"
    ]  # fmt: skip
    assert all(float(taken) >= 0 for _, taken in stages)


@pytest.mark.parametrize(
    ("inputs", "more", "kind", "told"),
    [
        ({}, {}, Kind.INVALID, "inputs none: give one, input"),
        ({"picture": _pixels(1)}, {}, Kind.INVALID, "inputs picture"),
        ({INPUT: _pixels(1), IMAGES: [b""]}, {}, Kind.INVALID, "give one"),
        ({INPUT: _pixels(1).astype(np.float32)}, {}, Kind.INVALID, r"input is float32: send uint8, \[n, 4, 6, 3\]"),
        ({INPUT: _pixels(1)[0]}, {}, Kind.INVALID, r"shape \[4, 6, 3\]: send \[n, 4, 6, 3\]"),
        ({INPUT: _pixels(1)[:, 1:]}, {}, Kind.INVALID, r"shape \[1, 3, 6, 3\]"),
        ({INPUT: _pixels(0)}, {}, Kind.INVALID, "no picture"),
        ({INPUT: _pixels(5)}, {}, Kind.INVALID, "at most 4"),
        ({INPUT: [b""]}, {}, Kind.INVALID, "input is strings"),
        ({IMAGES: _pixels(1)}, {}, Kind.INVALID, "image_bytes is uint8"),
        ({IMAGES: [b"GIF89a"]}, {}, Kind.UNPROCESSABLE, "send a JPEG or a PNG"),
        ({IMAGES: [b""]}, {"codec": "webp"}, Kind.INVALID, "no image codec 'webp'"),
        ({IMAGES: [b"12345"]}, {"codec": "raw"}, Kind.UNPROCESSABLE, "has 5 bytes"),
        ({INPUT: _pixels(1)}, {"model": "large"}, Kind.NOT_FOUND, "large is not served here: ask for tiny version 1"),
        ({INPUT: _pixels(1)}, {"version": "9"}, Kind.NOT_FOUND, "tiny version 9"),
        ({INPUT: _pixels(1)}, {"outputs": ("boxes",)}, Kind.INVALID, "no output boxes: ask for mask"),
        ({INPUT: _pixels(1)}, {"max_reply_bytes": 3}, Kind.UNPROCESSABLE, "outputs of 24 bytes"),
        ({INPUT: _pixels(1)}, {"budget_ms": 0}, Kind.LATE, "budget"),
        ({IMAGES: [b"", b""]}, {"frame": frame(1)}, Kind.INVALID, "2 pictures come with one frame message"),
        ({IMAGES: [b""]}, {"frame": frame(1), "caller": "thief"}, Kind.FORBIDDEN, "the frame is car's"),
        ({IMAGES: [b""]}, {"frame": frame(1, "other")}, Kind.INVALID, "they must agree"),
        ({IMAGES: [b""]}, {"frame": frame(1), "version": "1"}, Kind.INVALID, "for tiny, the call for tiny 1: they"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_expected(
    door: Door, inputs: dict[str, Any], more: dict[str, Any], kind: Kind, told: str
) -> None:
    """Whoever reads it must be able to mend the call without our source."""
    with pytest.raises(RefusedError, match=told) as raised:
        _answer(door, _call(inputs, **more))
    assert raised.value.kind is kind


def test_a_call_that_nobody_waits_for_costs_no_inference(doors: Doors, door: Door, gate: _Gate) -> None:
    """Clients that hang up must not keep the engine from those who wait."""
    gate.opened.clear()
    first = ask(door, _call({INPUT: _pixels(1)}))
    assert gate.reached.wait(WAIT_S)
    given_up = [ask(door, _call({INPUT: _pixels(1)})) for _ in range(3)]
    while door.depth == len(given_up):  # Until one has left the queue, and only the engine's thread can drop it.
        assert not gate.opened.wait(0.001)
    for asked in given_up:
        asked.cancel()
    gate.opened.set()
    first.futures[0].result(WAIT_S)
    _answer(door, _call({INPUT: _pixels(1)}))
    assert doors.node.counts["answered"] == 2
    assert doors.node.counts["expired"] == 3


def test_beyond_the_queue_a_call_is_told_to_come_later(door: Door, gate: _Gate) -> None:
    """Overload costs an answer, not the memory; the queue is the one that every door shares."""
    gate.opened.clear()
    asked = [ask(door, _call({INPUT: _pixels(1)})) for _ in range(12)]
    gate.opened.set()
    kinds: list[Kind | None] = []
    for each in asked:
        for future in each.futures:
            future.result(WAIT_S)
        try:
            each.reply()
            kinds.append(None)
        except RefusedError as error:
            kinds.append(error.kind)
    assert kinds.count(Kind.BUSY) >= 5
    assert set(kinds) == {None, Kind.BUSY}


class _OneByOne(Engine):
    """Takes a picture at a time, so that it is certain which frames wait for the version to come."""

    batch_size = 1

    def __init__(self, head: str, act: Callable[[], None] = lambda: None) -> None:
        super().__init__(act)
        self._head = head

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        return {self._head: super().infer(batch)["mask"]}


def _tensors(version: str, engine: Engine, head: str) -> Model:
    manifest = Manifest(
        task=Task.TENSORS,
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        outputs={head: OutputSection(tensor=f"{head}:0", kind=OutputKind.TENSOR)},
    )
    return Model(manifest, replace(CARD, version=version, task=Task.TENSORS, outputs=(head,)), engine)


@pytest.mark.parametrize("has_the_same_outputs", [True, False])
def test_an_answer_is_told_to_be_of_the_version_that_gave_it(
    gate: _Gate, monkeypatch: pytest.MonkeyPatch, *, has_the_same_outputs: bool
) -> None:
    """Models are exchanged under load: nobody may take an answer for another version's, and no worker end of it."""
    head = "one" if has_the_same_outputs else "other"
    older, newer = _tensors("1", _OneByOne("one", gate), "one"), _tensors("2", _OneByOne(head), head)
    decoded, put = threading.Semaphore(0), Batcher.put

    def put_and_tell(batcher: Batcher, request: Request) -> None:
        put(batcher, request)
        decoded.release()

    monkeypatch.setattr(Batcher, "put", put_and_tell)
    with open_gateway(older, gateway=GatewaySettings(grpc="127.0.0.1:0")) as doors:
        gate.opened.clear()
        node, door = doors.node, doors.node.door
        first = ask(door, _call({INPUT: _pixels(1)}))
        assert gate.reached.wait(WAIT_S)
        waiting = [ask(door, _call({INPUT: _pixels(2)})) for _ in range(3)]
        assert all(decoded.acquire(timeout=WAIT_S) for _ in range(2))  # The first, and one that waits behind it.
        (lane,) = node._serving.place(node._open_lane(newer))
        gate.opened.set()
        assert lane.close()
        for asked in (first, *waiting):
            for future in asked.futures:
                future.result(WAIT_S)
        assert first.reply().card.version == "1"
        if has_the_same_outputs:
            assert waiting[-1].reply().card.version == "2"
        else:
            with pytest.raises(RefusedError, match="ask again") as refused:
                waiting[-1].reply()
            assert refused.value.kind is Kind.BUSY
        with pytest.raises(RefusedError, match="ask again"):  # One picture was decoded for the old version.
            waiting[0].reply()


def test_a_model_that_is_unloaded_takes_no_more_and_answers_what_came(doors: Doors, gate: _Gate) -> None:
    """By Skylane's own door too, which asks for no card: frames that keep coming would hold the unloading up."""
    gate.opened.clear()
    door = doors.node.door
    asked = ask(door, _call({INPUT: _pixels(1)}))
    assert gate.reached.wait(WAIT_S)
    seen = door.wait_for_change(0, 0.0, lambda: False)
    unloading = threading.Thread(target=door.dismiss, args=("tiny",))
    unloading.start()
    assert door.wait_for_change(seen, WAIT_S, lambda: False) > seen
    assert not door.status.cards
    with pytest.raises(RefusedError, match="unloaded") as refused:
        door.put(frame(1), received_ns=clock.now_ns(), max_reply_bytes=1 << 20)
    assert refused.value.kind is Kind.NOT_FOUND
    gate.opened.set()
    unloading.join(WAIT_S)
    assert asked.futures[0].done()
    asked.reply()


def test_a_stream_whose_frames_are_refused_holds_no_unloading_up(doors: Doors, gate: _Gate) -> None:
    """Its thread answers them itself, and its call goes on: what is counted behind the call would be counted too late."""
    gate.opened.clear()
    door = doors.node.door
    told, over = threading.Event(), threading.Event()
    statuses: list[Status] = []

    def stream() -> None:
        futures = [door.put(frame(1), received_ns=clock.now_ns(), max_reply_bytes=1 << 20) for _ in range(16)]
        gate.opened.set()
        statuses.extend(future.result(WAIT_S).message.status for future in futures)
        told.set()
        over.wait(WAIT_S)

    thread = threading.Thread(target=stream)
    thread.start()
    assert told.wait(WAIT_S)
    unloading = threading.Thread(target=door.dismiss, args=("tiny", 10 * WAIT_S), daemon=True)
    unloading.start()
    unloading.join(WAIT_S / 2)
    assert not unloading.is_alive()
    assert set(statuses) == {Status.ANSWERED, Status.OVERLOADED}
    over.set()
    thread.join(WAIT_S)


@pytest.mark.parametrize("outputs", [("mask",), (RESULTS,)])
def test_pictures_whose_answers_are_too_large_together_are_refused(door: Door, outputs: tuple[str, ...]) -> None:
    """Each alone is within the bound: of a model of large outputs sixty-four such answers would take gigabytes."""
    one = _answer(door, _call({INPUT: _pixels(1)}, outputs=outputs)).outputs[outputs[0]]
    most = max(HEIGHT * WIDTH, len(one[0]))
    assert _answer(door, _call({INPUT: _pixels(1)}, outputs=outputs, max_reply_bytes=most)).outputs
    with pytest.raises(RefusedError, match=f"at most {most} are sent; ask for fewer") as raised:
        _answer(door, _call({INPUT: _pixels(4)}, outputs=outputs, max_reply_bytes=most))
    assert raised.value.kind is Kind.UNPROCESSABLE
