"""Skylane's own gRPC service."""

from typing import Any

import grpc
import numpy as np

from shared.imaging import image_codecs
from shared.messages.frame import Status, pack_frame, unpack_result
from shared.messages.node_status import NodeState, unpack_status
from shared.messages.protobuf_fields import pack, unpack
from shared.stages import CLOUD_STAGES
from tests.support.gateway import WAIT_S, GatewayWorker
from tests.support.tiny_model import HEIGHT, WIDTH, frame


def test_a_frame_is_answered_with_its_mask_and_time_stamps(worker: GatewayWorker) -> None:
    """The message is the same as over MQTT."""
    with grpc.insecure_channel(worker.grpc) as channel:
        infer: Any = channel.unary_unary("/skylane.v1.Worker/Answer")
        for sequence in range(5):
            message = unpack_result(unpack(infer(pack(pack_frame(frame(sequence))), timeout=WAIT_S)))
            assert message.status is Status.ANSWERED
            mask = image_codecs.decode_mask(message.data, "raw", (HEIGHT, WIDTH))
            np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), sequence, np.uint8))
            assert [stamp.stage for stamp in message.stamps] == list(CLOUD_STAGES)
            assert message.load is not None
            assert (message.load.queue, message.load.free) == (0, 64)


def test_status_has_the_model_cards(worker: GatewayWorker) -> None:
    """A vehicle needs the model card before it can send frames."""
    with grpc.insecure_channel(worker.grpc) as channel:
        status_of: Any = channel.unary_stream("/skylane.v1.Worker/Status")
        stream = status_of(b"", timeout=WAIT_S)
        status = unpack_status(bytes(unpack(next(stream))))
        stream.cancel()
    assert status.state is NodeState.ONLINE
    assert [card.name for card in status.cards] == ["tiny"]
