"""A transport is added with one file, this one, and one line in the table: here a model in the vehicle's own process."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from edge.config import EdgeConfig
from edge.transports.transport import (
    TRANSPORTS,
    EncodedRequest,
    OnUndelivered,
    RawReply,
    ReplyQueue,
    TransportEntry,
    TransportEvents,
)
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerDirectory
from shared import clock
from shared.imaging import image_codecs
from shared.imaging.image_codecs import ImageLimits
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame
from shared.messages.model_card import ModelCard
from shared.messages.node_metrics import VehicleMetrics
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.runlog.latency_log import read_rows
from shared.stages import CLOUD_STAGES, Stamp
from tests.pipeline.rig import HEIGHT, WIDTH, check, check_masks, count_outcomes, direct, pictures, play

FRAMES = 5
MODELS: dict[str, Model] = {}  # The models of this process.


class LocalTransport:
    """Calls the model when a frame is sent."""

    def __init__(self, model: Model, vehicle: str) -> None:
        self.replies = ReplyQueue()
        self.workers = WorkerDirectory(model.card.name)
        self.workers.update("local", pack_status(NodeStatus(NodeState.ONLINE, "s1", 1, (model.card,))))
        self._model, self._node = model, f"cloud/local/{vehicle}"
        self.is_connected, self.has_lost_broker = True, False

    @property
    def last_received_ns(self) -> int:
        """See Transport."""
        return clock.now_ns()

    def ping(self) -> None:
        """See Transport."""

    def report(self, metrics: VehicleMetrics) -> None:
        """See Transport."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """See Transport."""
        return self.workers.wait_for_card(timeout_s)

    def unused(self) -> Mapping[str, str]:
        """See Transport."""
        return {}

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Transport."""
        return EncodedRequest(pack_frame(message))

    def excess(self, _: EncodedRequest) -> str:
        """See Transport."""
        return ""

    def send(
        self, message: FrameMessage, request: EncodedRequest, _: OnUndelivered, *, worker: str | None = None
    ) -> None:
        """See Transport."""
        del request, worker
        stamps = [Stamp(CLOUD_STAGES[0], self._node, clock.now_ns())]
        pixels = image_codecs.decode(
            message.data, message.codec, message.layout, message.shape, ImageLimits(), message.layout
        )
        data = image_codecs.encode_mask(direct(self._model, pixels), message.options.mask_codec)
        stamps += [Stamp(stage, self._node, clock.now_ns()) for stage in CLOUD_STAGES[1:]]
        reply = ResultMessage(
            message.id,
            message.attempt,
            Status.ANSWERED,
            "local",
            model=message.model,
            model_version=self._model.card.version,
            model_sha256=self._model.card.sha256,
            shape=(HEIGHT, WIDTH),
            codec=message.options.mask_codec,
            data=data,
            batch_size=1,
            stamps=(*message.stamps, *stamps),
        )
        self.replies.offer(RawReply(lambda: reply, len(data), clock.now_ns()))

    def probe_clocks(self, clocks: WorkerClocks, stop: threading.Event) -> None:
        """See Transport."""
        del clocks
        stop.wait()

    def close(self) -> None:
        """See Transport."""


def open_local(config: EdgeConfig, _session: str, _events: TransportEvents) -> LocalTransport:
    """Opens the transport for the configured model."""
    return LocalTransport(MODELS[config.model], config.vehicle)


def test_a_new_transport_carries_the_frames_of_a_run(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen by the name in the table; log and masks are as with every other transport."""
    monkeypatch.setitem(TRANSPORTS, "local", TransportEntry(f"{__name__}:open_local", "edge", "broker"))
    monkeypatch.setitem(MODELS, "tiny", model)
    out = tmp_path / "car"
    code, printed = play(
        pictures(tmp_path, FRAMES), "mqtt://unused", out, transport="local", closed_loop=True, codec="raw"
    )
    assert code == 0, printed
    rows = list(read_rows(out))
    check(rows)
    assert count_outcomes(rows) == {("answered", ""): FRAMES}
    check_masks(out, model, FRAMES)
