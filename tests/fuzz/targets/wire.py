"""Fuzz target of the MQTT messages, each processed as by its receiver. The first byte selects the kind of message."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np

from cloud.frontends.clock_responder import ClockResponder
from cloud.serving.admission import Admission
from cloud.serving.decoding import Decoder
from cloud.serving.errors import ApiError
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.serving.served_models import ServedModel, ServedModels
from edge.workers.worker_clocks import ProbeTracker, WorkerClocks
from edge.workers.worker_directory import WorkerDirectory
from edge.workers.worker_stats import WorkerLoads
from shared import clock
from shared.clock import Deadline
from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.codec import MASK_CODECS
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import IMAGE_CODECS, ImageLimits
from shared.messages import tensors, topics
from shared.messages.clock_probes import Echo, Probe, pack_echo, pack_probe
from shared.messages.control import (
    ControlReply,
    ControlRequest,
    ModelEntry,
    ModelState,
    Verb,
    pack_reply,
    pack_request,
    unpack_reply,
    unpack_request,
)
from shared.messages.frame import (
    FrameMessage,
    RequestOptions,
    ResultMessage,
    Status,
    pack_frame,
    pack_result,
    peek,
    unpack_frame,
    unpack_result,
)
from shared.messages.load import LoadReport, WorkerLoad, pack_load, unpack_load
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.results import Classification, Detections, Result, Tensors
from shared.messages.topics import FrameId
from shared.mqtt.bus import Delivery
from shared.stages import Stage, Stamp
from shared.task import task_named
from tests.support import tiny_model
from tests.support.faults.hostile.mutations import Mutator

HEIGHT, WIDTH = 8, 12
MAX_BYTES = 1 << 14
ID = FrameId("car", "left", "s1", 7)
PLAN = geometry.plan(geometry.Resize.CROP, 16, 24, HEIGHT, WIDTH)
CARD = replace(tiny_model.CARD, height=HEIGHT, width=WIDTH)
_LIMITS = ImageLimits(max_pixels=1 << 16, max_bytes=1 << 20)
_LOAD = WorkerLoad(queue=3, free=61, wait_ms=120.5, answer_ms=30.0, spacing_ms=15.0)
_IMAGE = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


class _NoBatcher:
    """A batcher that accepts every frame and never runs the engine."""

    def __init__(self) -> None:
        self.images = 0

    def release(self) -> None:
        """Does nothing."""

    def put(self, request: Request) -> None:
        """Checks the decoded image of a frame."""
        assert request.image.shape == (HEIGHT, WIDTH, 3)
        assert request.image.dtype == np.uint8
        assert request.message is not None
        plan = request.message.geometry
        if plan.source_height * plan.source_width <= _LIMITS.max_pixels:
            scaled = geometry.to_source(request.image[..., 0], plan, geometry.UNSEEN)
            assert scaled.shape == (plan.source_height, plan.source_width)
        self.images += 1


def _check_reply(message: ResultMessage) -> None:
    """Checks that a vehicle can decode a reply, and that it fits a packet together with a mask."""
    payload = pack_result(message)
    assert unpack_result(payload) == message
    assert len(payload) < 1 << 16, "a reply without a result exceeds the size reserved for it"


_replier = Replier("worker", "cloud/worker/s1")
_decoder = Decoder(Admission(), _replier, ServedModels(), _LIMITS)
_lane = cast("ServedModel", SimpleNamespace(card=CARD, batcher=_NoBatcher()))


def _read_frame(payload: bytes) -> None:
    """Processes a frame as a worker does: header, message, image, rejection."""
    request = Request(
        payload=payload,
        vehicle=ID.vehicle,
        camera=ID.camera,
        model=CARD.name,
        reply=_check_reply,
        times={Stage.RECEIVED: clock.now_ns()},
        max_reply_bytes=1 << 20,
        correlation=ID,
        header=peek(payload),
    )
    assert request.deadline.at_ns > 0
    if _decoder.decode(request, _lane):
        _lane.batcher.put(request)
    with suppress(MessageError):
        message = unpack_frame(payload, 0)
        assert unpack_frame(pack_frame(message, 0), 0) == message


def _read_result(payload: bytes) -> None:
    """Processes a result as a vehicle does: message, result, mask scaled to the frame."""
    try:
        message = unpack_result(payload)
    except MessageError:
        return
    assert unpack_result(pack_result(message)) == message
    shape = message.shape
    if message.task == "segmentation" and shape not in ((HEIGHT, WIDTH), (16, 24)):
        return  # The vehicle rejects it before decoding.
    try:
        result = task_named(message.task).decode(message.data, message.codec, shape)
    except SkylaneError:
        return
    if isinstance(result, np.ndarray) and result.shape == (HEIGHT, WIDTH):
        assert geometry.to_source(result, PLAN, geometry.UNSEEN).shape == (16, 24)


def _read_status(payload: bytes) -> None:
    workers = WorkerDirectory("tiny")
    workers.announced(Delivery(topics.WORKER_STATUS.of(worker="worker"), payload, clock.now_ns()))
    workers.online()


def _read_load(payload: bytes) -> None:
    loads = WorkerLoads(CARD.name)
    loads.announced("worker", "s1", Delivery(topics.LOADS.of(worker="worker"), payload, clock.now_ns()))
    try:
        report = unpack_load(payload)
    except MessageError:
        return
    assert unpack_load(pack_load(report)) == report


def _read_probe(payload: bytes) -> None:
    with suppress(ApiError):
        ClockResponder("worker", "cloud/worker/s1").echo("car", payload, clock.now_ns())


def _read_echo(payload: bytes) -> None:
    probes = ProbeTracker("s1", WorkerClocks())
    sent = probes.probe("worker", 5)
    assert sent.sequence == 0
    probes.echoed("worker", payload, 50)


def _read_request(payload: bytes) -> None:
    verbs = [*Verb, "destroy"]
    try:
        request = unpack_request(payload[1:], verbs[payload[0] % len(verbs)] if payload else "")
    except MessageError:
        return
    assert unpack_request(pack_request(request), request.verb) == request


def _read_reply(payload: bytes) -> None:
    try:
        reply = unpack_reply(payload)
    except MessageError:
        return
    unpack_reply(pack_reply(reply))  # Long texts are truncated.


def _read_tensors(payload: bytes) -> None:
    codecs = [*tensors.TENSOR_CODECS]
    try:
        arrays = tensors.decode(payload[1:], codecs[payload[0] % len(codecs)] if payload else "raw")
    except SkylaneError:
        return
    assert list(tensors.decode(tensors.encode(arrays, "zstd"), "zstd")) == list(arrays)


class _Reader(NamedTuple):
    read: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def frame_seeds() -> Iterator[bytes]:
    """Yields frames with every image codec."""
    for codec in IMAGE_CODECS:
        yield pack_frame(_frame_of(codec, Layout.RGB8), 0)
    yield pack_frame(_frame_of("png", Layout.BAYER_RGGB8), 0)
    yield pack_frame(_frame_of("raw", Layout.MONO16), 0)


def _frame_of(codec: str, layout: Layout) -> FrameMessage:
    pixels = (_IMAGE if layout.channels == 3 else _IMAGE[..., 0]).astype(layout.dtype)
    return FrameMessage(
        id=ID,
        model=CARD.name,
        layout=layout,
        shape=pixels.shape,
        codec=codec,
        geometry=geometry.plan(geometry.Resize.STRETCH, HEIGHT, WIDTH, HEIGHT, WIDTH),
        stamp_ns=5,
        data=bytes(image_codecs.encode(pixels, layout, codec, 50)),
        deadline=Deadline.after_ms(100, 0),
        version="1",
        options=RequestOptions(top_k=2),
        stamps=(Stamp("due", "edge/car/s1", 1), Stamp("sent", "edge/car/s1", 2)),
    )


def result_seeds() -> Iterator[bytes]:
    """Yields results of every task and codec."""
    mask: Result = (_IMAGE[..., 0] > 127).astype(np.uint8)
    for codec in MASK_CODECS:
        yield _result_of("segmentation", codec, task_named("segmentation").encode(mask, codec))
    boxes = np.array([[1, 2, 3, 4]], np.float32)
    others: dict[str, Result] = {
        "classification": Classification((1, 0), (0.75, 0.25)),
        "detection": Detections(boxes, np.array([1], np.uint16), np.array([0.5], np.float32)),
        "tensors": Tensors({"depth": _IMAGE[..., 0].astype(np.float32)}),
    }
    for codec in tensors.TENSOR_CODECS:
        for task, result in others.items():
            yield _result_of(task, codec, task_named(task).encode(result, codec))


def _result_of(task: str, codec: str, data: Buffer) -> bytes:
    return pack_result(
        ResultMessage(
            ID,
            1,
            Status.ANSWERED,
            "worker",
            task=task,
            geometry=PLAN,
            shape=(HEIGHT, WIDTH) if task == "segmentation" else None,
            codec=codec,
            data=data,
            load=_LOAD,
            stamps=(Stamp("received", "cloud/worker/s1", 3),),
        )
    )


def status_seeds() -> Iterator[bytes]:
    """Yields the status of a worker online and offline."""
    yield pack_status(NodeStatus(NodeState.ONLINE, "s1", 64, (CARD,)))
    yield pack_status(NodeStatus(NodeState.OFFLINE, "s1"))


def load_seeds() -> Iterator[bytes]:
    """Yields a load report."""
    yield pack_load(LoadReport("s1", {CARD.name: _LOAD}))


def probe_seeds() -> Iterator[bytes]:
    """Yields a clock probe."""
    yield pack_probe(Probe("s1", 0, 5))


def echo_seeds() -> Iterator[bytes]:
    """Yields a clock echo."""
    yield pack_echo(Echo("s1", 0, 5, 10, 20, "cloud/worker/s1"))


def request_seeds() -> Iterator[bytes]:
    """Yields a control request of every verb, after the index of the verb."""
    for index, verb in enumerate(Verb):
        yield bytes([index]) + pack_request(ControlRequest("operator", "n1", verb, "tiny", "1"))


def reply_seeds() -> Iterator[bytes]:
    """Yields a control reply."""
    entry = ModelEntry("tiny", "1", ModelState.CURRENT, "segmentation", "tensorflow fp32", "ab" * 32)
    yield pack_reply(ControlReply("n1", "worker", is_ready=True, models=(entry,), card=CARD, took_ms=8.5))


def tensor_seeds() -> Iterator[bytes]:
    """Yields encoded arrays of every codec, after the index of the codec."""
    arrays: dict[str, tensors.Array] = {
        "depth": _IMAGE[..., 0].astype(np.float32),
        "none": np.zeros((0, 3), np.int64),
    }
    for index, codec in enumerate(tensors.TENSOR_CODECS):
        yield bytes([index]) + tensors.encode(arrays, codec)


_READERS = (
    _Reader(_read_frame, frame_seeds),
    _Reader(_read_result, result_seeds),
    _Reader(_read_status, status_seeds),
    _Reader(_read_probe, probe_seeds),
    _Reader(_read_echo, echo_seeds),
    _Reader(_read_request, request_seeds),
    _Reader(_read_reply, reply_seeds),
    _Reader(_read_tensors, tensor_seeds),
    _Reader(_read_load, load_seeds),
)


def seeds() -> Iterator[bytes]:
    """Yields valid messages of every kind."""
    for index, reader in enumerate(_READERS):
        yield from (bytes([index]) + payload for payload in reader.seeds())


def run(data: bytes) -> None:
    """Reads one input; raises only on a bug."""
    if data:
        _READERS[data[0] % len(_READERS)].read(data[1:])


def mutated(data: bytes, seed: int) -> bytes:
    """Damages an input according to MessagePack, whose lengths libFuzzer does not know."""
    other = _SEEDS[random.Random(seed).randrange(len(_SEEDS))]
    return data[:1] + Mutator(seed).mutated(data[1:], other[1:])


_SEEDS = tuple(seeds())
