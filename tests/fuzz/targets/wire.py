"""The wire: every message that anybody may publish, read as the node that it is meant for reads it.

An input is one byte that picks the reader, then the payload.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np

from bench.faults.hostile.mutations import Mutator
from cloud.frontends.clock_responder import Echoes
from cloud.serving.admission import Admission
from cloud.serving.decoding import Decoder
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.serving.served_models import Lane, Serving
from edge.reliability.clock_sync import Probes
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_directory import Workers
from shared import clock
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import IMAGE_CODECS, ImageLimits
from shared.imaging.labels import Labels
from shared.imaging.mask_codecs import MASK_CODECS
from shared.messages import results, tensors, topics
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
    unpack_frame,
    unpack_result,
)
from shared.messages.frame_header import peek
from shared.messages.model_card import ModelCard, Task
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.results import Classification, Detections, Result, Tensors
from shared.messages.topics import FrameId
from shared.mqtt.bus import Delivery, MemoryBus
from shared.stages import Stage, Stamp

HEIGHT, WIDTH = 8, 12
MAX_BYTES = 1 << 14
ID = FrameId("car", "left", "s1", 7)
PLAN = geometry.plan(geometry.Resize.CROP, 16, 24, HEIGHT, WIDTH)
CARD = ModelCard(
    "tiny",
    "1",
    "ab" * 32,
    Task.SEGMENTATION,
    HEIGHT,
    WIDTH,
    Layout.RGB8,
    geometry.Resize.CROP,
    Labels(("dark", "light"), ((0, 0, 0), (255, 255, 255))),
    trained=True,
)
_LIMITS = ImageLimits(max_pixels=1 << 16, max_bytes=1 << 20)
_PICTURE = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


class _Unbatched:
    """A batcher whose places are free, and which never infers."""

    def __init__(self) -> None:
        self.pictures = 0

    def release(self) -> None:
        """A place was given back."""

    def put(self, request: Request) -> None:
        """A frame came that an engine could take."""
        assert request.picture.shape == (HEIGHT, WIDTH, 3)
        assert request.picture.dtype == np.uint8
        assert request.message is not None
        plan = request.message.geometry
        if plan.source_height * plan.source_width <= _LIMITS.max_pixels:
            laid = geometry.to_source(request.picture[..., 0], plan, geometry.UNSEEN)
            assert laid.shape == (plan.source_height, plan.source_width)
        self.pictures += 1


def _answer(message: ResultMessage) -> None:
    """Whatever a worker answers must be readable by the vehicle, and fit beside a mask."""
    payload = pack_result(message)
    assert unpack_result(payload) == message
    assert len(payload) < 1 << 16, "an answer without a result takes more than the room kept for it"


_replier = Replier("worker", "cloud/worker/s1")
_decoder = Decoder(Admission(), _replier, Serving(), _LIMITS)
_lane = cast("Lane", SimpleNamespace(card=CARD, batcher=_Unbatched()))


def _frame(payload: bytes) -> None:
    """As a worker takes it: head, admission's view of it, message, picture, refusal."""
    request = Request(
        payload=payload,
        vehicle=ID.vehicle,
        camera=ID.camera,
        model=CARD.name,
        answer=_answer,
        times={Stage.RECEIVED: clock.now_ns()},
        max_reply_bytes=1 << 20,
        correlation=ID,
        head=peek(payload),
    )
    assert request.ends_ns is None or request.ends_ns > 0
    if _decoder._is_decoded(request, _lane):
        _lane.batcher.put(request)
    with suppress(MessageError):
        message = unpack_frame(payload)
        assert unpack_frame(pack_frame(message)) == message


def _mask(payload: bytes) -> None:
    """As a vehicle takes it: message, result, and a mask laid back onto its frame."""
    try:
        message = unpack_result(payload)
    except MessageError:
        return
    assert unpack_result(pack_result(message)) == message
    shape = message.shape
    if message.task is Task.SEGMENTATION and shape not in ((HEIGHT, WIDTH), (16, 24)):
        return  # Refused by the vehicle before it is decoded.
    try:
        result = results.decode(message.task, message.data, message.codec, shape)
    except SkylaneError:
        return
    if isinstance(result, np.ndarray) and result.shape == (HEIGHT, WIDTH):
        assert geometry.to_source(result, PLAN, geometry.UNSEEN).shape == (16, 24)


def _status(payload: bytes) -> None:
    workers = Workers()
    workers.announced(Delivery(topics.WORKER_STATUS.of(worker="worker"), payload, clock.now_ns()))
    workers.serves("tiny")


def _probe(payload: bytes) -> None:
    with MemoryBus() as bus:
        Echoes("worker", "cloud/worker/s1")._received(
            bus, Delivery(topics.PROBES.of(worker="worker", vehicle="car"), payload, clock.now_ns())
        )


def _echo(payload: bytes) -> None:
    probes = Probes("s1", Clocks())
    sent = probes.probe("worker", 5)
    assert sent.sequence == 0
    probes.echoed("worker", payload, 50)


def _request(payload: bytes) -> None:
    verbs = [*Verb, "destroy"]
    try:
        request = unpack_request(payload[1:], verbs[payload[0] % len(verbs)] if payload else "")
    except MessageError:
        return
    assert unpack_request(pack_request(request), request.verb) == request


def _reply(payload: bytes) -> None:
    try:
        reply = unpack_reply(payload)
    except MessageError:
        return
    unpack_reply(pack_reply(reply))  # Its texts may be cut.


def _tensors(payload: bytes) -> None:
    codecs = [*tensors.TENSOR_CODECS]
    try:
        arrays = tensors.decode(payload[1:], codecs[payload[0] % len(codecs)] if payload else "raw")
    except SkylaneError:
        return
    assert list(tensors.decode(tensors.encode(arrays, "zstd"), "zstd")) == list(arrays)


class _Reader(NamedTuple):
    read: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def _frame_seeds() -> Iterator[bytes]:
    for codec in IMAGE_CODECS:
        yield pack_frame(_frame_of(codec, Layout.RGB8))
    yield pack_frame(_frame_of("png", Layout.BAYER_RGGB8))
    yield pack_frame(_frame_of("raw", Layout.MONO16))


def _frame_of(codec: str, layout: Layout) -> FrameMessage:
    pixels = (_PICTURE if layout.channels == 3 else _PICTURE[..., 0]).astype(layout.dtype)
    return FrameMessage(
        id=ID,
        model=CARD.name,
        layout=layout,
        shape=pixels.shape,
        codec=codec,
        geometry=geometry.plan(geometry.Resize.STRETCH, HEIGHT, WIDTH, HEIGHT, WIDTH),
        frame_stamp_ns=5,
        data=bytes(image_codecs.encode(pixels, layout, codec, 50)),
        budget_ms=100,
        version="1",
        want=RequestOptions(top_k=2),
        stamps=(Stamp("due", "edge/car/s1", 1), Stamp("sent", "edge/car/s1", 2)),
    )


def _mask_seeds() -> Iterator[bytes]:
    mask: Result = (_PICTURE[..., 0] > 127).astype(np.uint8)
    for codec in MASK_CODECS:
        yield _mask_of(Task.SEGMENTATION, codec, results.encode(mask, codec))
    boxes = np.array([[1, 2, 3, 4]], np.float32)
    others: dict[Task, Result] = {
        Task.CLASSIFICATION: Classification((1, 0), (0.75, 0.25)),
        Task.DETECTION: Detections(boxes, np.array([1], np.uint16), np.array([0.5], np.float32)),
        Task.TENSORS: Tensors({"depth": _PICTURE[..., 0].astype(np.float32)}),
    }
    for codec in tensors.TENSOR_CODECS:
        for task, result in others.items():
            yield _mask_of(task, codec, results.encode(result, codec))


def _mask_of(task: Task, codec: str, data: Buffer) -> bytes:
    return pack_result(
        ResultMessage(
            ID,
            1,
            Status.ANSWERED,
            "worker",
            task=task,
            geometry=PLAN,
            shape=(HEIGHT, WIDTH) if task is Task.SEGMENTATION else None,
            codec=codec,
            data=data,
            stamps=(Stamp("received", "cloud/worker/s1", 3),),
        )
    )


def _status_seeds() -> Iterator[bytes]:
    yield pack_status(NodeStatus(NodeState.ONLINE, "s1", 64, (CARD,)))
    yield pack_status(NodeStatus(NodeState.OFFLINE, "s1"))


def _seed_of_probe() -> bytes:
    return pack_probe(Probe("s1", 0, 5))


def _seed_of_echo() -> bytes:
    return pack_echo(Echo("s1", 0, 5, 10, 20, "cloud/worker/s1"))


def _control_seeds() -> Iterator[bytes]:
    for place, verb in enumerate(Verb):
        yield bytes([place]) + pack_request(ControlRequest("operator", "n1", verb, "tiny", "1"))


def _reply_seeds() -> Iterator[bytes]:
    entry = ModelEntry("tiny", "1", ModelState.CURRENT, "segmentation", "tensorflow fp32", "ab" * 32)
    yield pack_reply(ControlReply("n1", "worker", is_ready=True, models=(entry,), card=CARD, took_ms=8.5))


def _tensor_seeds() -> Iterator[bytes]:
    arrays: dict[str, tensors.Array] = {
        "depth": _PICTURE[..., 0].astype(np.float32),
        "none": np.zeros((0, 3), np.int64),
    }
    for place, codec in enumerate(tensors.TENSOR_CODECS):
        yield bytes([place]) + tensors.encode(arrays, codec)


_READERS = (
    _Reader(_frame, _frame_seeds),
    _Reader(_mask, _mask_seeds),
    _Reader(_status, _status_seeds),
    _Reader(_probe, lambda: iter([_seed_of_probe()])),
    _Reader(_echo, lambda: iter([_seed_of_echo()])),
    _Reader(_request, _control_seeds),
    _Reader(_reply, _reply_seeds),
    _Reader(_tensors, _tensor_seeds),
)


def seeds() -> Iterator[bytes]:
    """Valid inputs, made by our own code."""
    for place, reader in enumerate(_READERS):
        yield from (bytes([place]) + payload for payload in reader.seeds())


def run(data: bytes) -> None:
    """Read one input; anything but our own errors is a finding."""
    if data:
        _READERS[data[0] % len(_READERS)].read(data[1:])


def mutated(data: bytes, seed: int) -> bytes:
    """An input damaged as a message is, not as bytes are: libFuzzer knows nothing of MessagePack's lengths."""
    other = _SEEDS[random.Random(seed).randrange(len(_SEEDS))]
    return data[:1] + Mutator(seed).mutated(data[1:], other[1:])


_SEEDS = tuple(seeds())
