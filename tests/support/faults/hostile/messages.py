"""Damaged messages for a worker or a vehicle, generated from a seed."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from shared.clock import Deadline
from shared.imaging import image_codecs
from shared.imaging.codec import MASK_CODECS
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.messages import topics
from shared.messages.clock_probes import Echo, Probe, pack_echo, pack_probe
from shared.messages.control import ControlRequest, Verb, pack_request
from shared.messages.frame import (
    FRAME_CONTENT_TYPE,
    RESULT_CONTENT_TYPE,
    FrameMessage,
    ResultMessage,
    Status,
    pack_frame,
    pack_result,
)
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.mqtt.bus import Properties
from shared.stages import Stamp
from tests.support.faults.hostile.mutations import Mutator

_CAMERA, _SESSION = "left", "s1"
_VERBS = (Verb.LIST, Verb.METADATA, Verb.READY)  # Without LOAD, because a valid load would be executed.
_QUALITY = 80
_PROBING = 500


class Publication(NamedTuple):
    """A message with its topic and properties."""

    topic: str
    payload: bytes
    properties: Properties


class _Template(NamedTuple):
    """A valid message and its topic."""

    topic: str
    payload: bytes
    correlation: bytes | None = None
    response_topic: str | None = None
    content_type: str | None = None


def black_frame(frame_id: FrameId, model: str, height: int, width: int) -> FrameMessage:
    """Returns a valid frame with the given id: a black raw RGB image in the model's size, height×width pixels."""
    return FrameMessage(
        id=frame_id,
        model=model,
        layout=Layout.RGB8,
        shape=(height, width, 3),
        codec="raw",
        geometry=plan(Resize.STRETCH, height, width, height, width),
        stamp_ns=0,
        data=bytes(height * width * 3),
    )


def for_worker(seed: int, *, worker: str, model: str, vehicle: str, height: int, width: int) -> Iterator[Publication]:
    """Yields endless frames, retries, probes and control requests for a worker; a few of them are valid.

    `height` and `width` are the model's input size in pixels.
    """
    frames = [
        (FrameId(vehicle, _CAMERA, _SESSION, number), payload)
        for number, payload in enumerate(_frames(model, vehicle, height, width))
    ]
    names = {"model": model, "vehicle": vehicle, "camera": _CAMERA}
    reply_topic = topics.MASKS.of(vehicle=vehicle, camera=_CAMERA)
    by_group = [
        _Template(topics.FRAMES.of(**names), payload, str(frame_id).encode(), reply_topic, FRAME_CONTENT_TYPE)
        for frame_id, payload in frames
    ]
    retried = [each._replace(topic=topics.RETRIES.of(worker=worker, **names)) for each in by_group]
    probes = [  # They use many vehicle names, because the rate of probes is limited for each vehicle.
        _Template(topics.PROBES.of(worker=worker, vehicle=f"{vehicle}-{number}"), pack_probe(Probe(_SESSION, 1, 5)))
        for number in range(_PROBING)
    ]
    control = [
        _Template(
            topics.CONTROL.of(worker=worker, verb=verb), pack_request(ControlRequest("operator", "n1", verb, model))
        )
        for verb in _VERBS
    ]
    return _damaged(seed, (by_group, by_group, by_group, retried, probes, control))


def for_vehicle(seed: int, *, vehicle: str, worker: str, answers: Sequence[bytes]) -> Iterator[Publication]:
    """Yields endless replies and clock replies for a vehicle; `answers` are valid ones for frames in flight."""
    answered = [
        _Template(topics.MASKS.of(vehicle=vehicle, camera=_CAMERA), payload, content_type=RESULT_CONTENT_TYPE)
        for payload in answers
    ]
    echo = Echo(_SESSION, 0, 5, 10, 20, f"cloud/{worker}/{_SESSION}")
    echoes = [_Template(topics.ECHOES.of(vehicle=vehicle, worker=worker), pack_echo(echo))]
    return _damaged(seed, (answered, answered, answered, echoes))


def answers_to(frame_id: FrameId, stamps: tuple[Stamp, ...], card: ModelCard) -> list[bytes]:
    """Returns valid replies of a model to a frame in every codec, and with every outcome."""
    shape = (card.height, card.width)
    mask = np.zeros(shape, np.uint8)
    answered = ResultMessage(
        frame_id,
        1,
        Status.ANSWERED,
        "worker",
        model=card.name,
        model_version=card.version,
        model_sha256=card.sha256,
        shape=shape,
        stamps=stamps,
    )
    given = [replace(answered, codec=codec, data=image_codecs.encode_mask(mask, codec)) for codec in MASK_CODECS]
    refused = [
        ResultMessage(frame_id, 1, status, "worker", reason="so it is", stamps=stamps)
        for status in Status
        if status is not Status.ANSWERED
    ]
    return [pack_result(message) for message in (*given, *refused)]


def _frames(model: str, vehicle: str, height: int, width: int) -> Iterator[bytes]:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    node = f"edge/{vehicle}/{_SESSION}"
    for number, codec in enumerate(IMAGE_CODECS):
        frame = black_frame(FrameId(vehicle, _CAMERA, _SESSION, number), model, height, width)
        yield pack_frame(
            replace(
                frame,
                codec=codec,
                data=bytes(image_codecs.encode(pixels, Layout.RGB8, codec, _QUALITY)),
                deadline=Deadline.after_ms(60_000),
                stamps=(Stamp("due", node, 1), Stamp("sent", node, 2)),
            )
        )


def _damaged(seed: int, kinds: Sequence[Sequence[_Template]]) -> Iterator[Publication]:
    """Yields templates of random kinds with a mutated payload, and sometimes mutated topic and properties."""
    chance, mutator = random.Random(seed), Mutator(seed)
    while True:
        kind = chance.choice(kinds)
        template, other = chance.choice(kind), chance.choice(chance.choice(kinds))
        payload = mutator.mutated(template.payload, other.payload)
        yield Publication(_topic(chance, template.topic), payload, _properties(chance, template, other))


def _topic(chance: random.Random, topic: str) -> str:
    """Returns the topic, or one with an invalid name that the `+` of a subscription still matches."""
    if chance.random() > 0.02:
        return topic
    return topic.rpartition("/")[0] + chance.choice(("/ ", "/ä", "/" + "x" * 65, "/"))


def _properties(chance: random.Random, template: _Template, other: _Template) -> Properties:
    kept = chance.random() < 0.7
    foreign = (None, b"", b"\xff", b"other/left/s1/1", b"x" * 1000, other.correlation)
    elsewhere = (None, "skylane/v1/masks/other/left", other.response_topic)
    return Properties(
        content_type=template.content_type,
        correlation=template.correlation if kept else chance.choice(foreign),
        response_topic=template.response_topic if kept else chance.choice(elsewhere),
    )
