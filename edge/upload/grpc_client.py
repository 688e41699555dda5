"""A caller by Skylane's own gRPC: a picture is made ready for the model here, as a vehicle does it."""

import itertools
import queue
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge.config import EdgeConfig
from edge.reliability.worker_directory import NoWorkerError
from edge.sinks.jsonl import told_of
from edge.transports.factory import open_transport
from edge.transports.transport import EncodedRequest
from edge.upload.client import LOOK_S, ImageRefusedError, Told, WorkerBusyError, WorkerLostError
from shared import clock
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.drawing import draw
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_files import Picture, read_image_file, stamp_untrained
from shared.messages import results
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.stages import CLOUD_STAGES, Stage, durations_ns, stage_times

_CAMERA = "send"
_OPACITY = 0.5
_QUALITY = 90  # Of annotated pictures.
_NO_ONE = "nobody took it"


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """What is asked of each node, and how."""

    model: str
    version: str | None = None
    codec: str = "jpeg"
    quality: int = 95
    annotate: bool = False
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0
    tls_ca: Path | None = None
    sender: str = "send"  # The name it calls itself by.


class GrpcUploadClient:
    """One place at a worker's gRPC door."""

    def __init__(self, node: str, settings: UploadSettings, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait for a worker that serves the model. `node`: HOST:PORT; `is_over`: whether nobody needs it any more.

        Raises:
            WorkerLostError: there is none within the time to connect, or before it was over.
        """
        self._settings = settings
        self._session = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        config = EdgeConfig(
            transport="grpc",
            worker_addresses=(node,),
            worker_tls_ca=settings.tls_ca,
            vehicle=settings.sender,
            model=settings.model,
            model_version=settings.version,
            answer_timeout_s=settings.answer_timeout_s,
            window=1,
        )
        self._transport = open_transport(config, self._session)
        try:
            self._card = self._first_card(is_over)
        except BaseException:
            self.close()
            raise

    def ask(self, picture: Path) -> Told:
        """See Caller."""
        began_ns = clock.now_ns()
        rgb = read_image_file(picture)
        self._card = self._current_card()
        message, shown = self._prepared(rgb)
        parcel = self._transport.pack(message)
        answer = self._answer(message, parcel)
        if answer.status is Status.OVERLOADED:
            raise WorkerBusyError(answer.reason)
        if answer.status is not Status.ANSWERED:
            raise ImageRefusedError(f"{answer.status}: {answer.reason}")
        try:
            result = results.decode(answer.task, answer.data, answer.codec, answer.shape)
        except SkylaneError as error:
            raise WorkerLostError(f"its {results.noun(answer.task)} cannot be used: {error}") from error
        ended_ns = clock.now_ns()
        times = stage_times((stamp for stamp in answer.stamps if stamp.node.startswith("cloud/")), CLOUD_STAGES)
        inferred_ns = durations_ns(times).get(Stage.INFERRED)
        told = {"task": answer.task.value, "model": answer.model, "version": answer.model_version}
        return Told(
            {**told, **told_of(result, message.geometry, self._card.labels)},
            parcel.size,
            None if inferred_ns is None else inferred_ns / 1e6,
            (ended_ns - began_ns) / 1e6,
            _annotated(shown, result, self._card, message.geometry) if self._settings.annotate else None,
        )

    def close(self) -> None:
        """See Caller."""
        self._transport.close()

    def _first_card(self, is_over: Callable[[], bool]) -> ModelCard:
        until_s = time.monotonic() + self._settings.connect_timeout_s
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            try:
                return self._transport.wait_for_card(min(left_s, LOOK_S))
            except NoWorkerError as error:
                if error.is_final or not left_s or is_over():
                    raise WorkerLostError(str(error)) from error

    def _current_card(self) -> ModelCard:
        """The model's card as the node tells it now: between two pictures another version may have taken over.

        Raises:
            WorkerLostError: no worker serves the model there.
        """
        try:
            return self._transport.wait_for_card(self._settings.connect_timeout_s)
        except NoWorkerError as error:
            raise WorkerLostError(str(error)) from error

    def _prepared(self, rgb: Picture) -> tuple[FrameMessage, Picture]:
        """A picture as a frame, and what the model sees of it, in RGB."""
        card, settings = self._card, self._settings
        height, width = rgb.shape[:2]
        plan = geometry.plan(card.resize, height, width, card.height, card.width)
        shown = geometry.apply(rgb, plan)
        pixels: Pixels = to_colour(shown, Layout.RGB8, card.layout, "bilinear")
        message = FrameMessage(
            id=FrameId(settings.sender, _CAMERA, self._session, next(self._numbers)),
            model=card.name,
            version=settings.version,
            layout=card.layout,
            shape=pixels.shape,
            codec=settings.codec,
            geometry=plan,
            frame_stamp_ns=0,
            data=image_codecs.encode(pixels, card.layout, settings.codec, settings.quality),
            want=RequestOptions(),
        )
        return message, shown

    def _answer(self, message: FrameMessage, parcel: EncodedRequest) -> ResultMessage:
        replies = self._transport.replies
        departed_ns = self._transport.departed_ns()
        self._transport.send(message, parcel, lambda _: replies.put(None))
        until_ns = clock.now_ns() + round(self._settings.answer_timeout_s * 1e9)
        while clock.now_ns() < until_ns:
            try:
                reply = replies.get(timeout=0.2)
            except queue.Empty:
                if self._transport.departed_ns() > departed_ns:
                    raise WorkerLostError("the connection broke") from None
                continue
            if reply is None:
                raise WorkerLostError(_NO_ONE)
            try:
                return reply.read()
            except MessageError as error:
                raise WorkerLostError(f"its answer cannot be read: {error}") from error
        raise WorkerLostError(f"no answer within {self._settings.answer_timeout_s:g} s")


def _annotated(shown: Picture, result: results.Result, card: ModelCard, plan: geometry.Geometry) -> bytes:
    drawn = draw(shown, result, card.labels, plan, _OPACITY)
    stamped = drawn if card.trained else stamp_untrained(drawn)
    return bytes(image_codecs.encode(stamped, Layout.RGB8, "jpeg", _QUALITY))
