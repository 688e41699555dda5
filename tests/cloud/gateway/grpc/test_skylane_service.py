"""Skylane's own gRPC service, spoken to by a plain channel."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from cloud.gateway.settings import GatewaySettings
from shared.encoding.protobuf_wire import pack, unpack
from shared.imaging import mask_codecs
from shared.messages.frame import Status, pack_frame, unpack_result
from shared.messages.node_status import NodeState, unpack_status
from shared.stages import CLOUD_STAGES
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

WAIT_S = 60.0


@pytest.fixture(name="doors")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), gateway=GatewaySettings(grpc="127.0.0.1:0")) as doors:
        yield doors


def test_a_frame_is_answered_with_its_own_mask_and_stamps() -> None:
    """The same message as over the broker, through another door."""
    with (
        open_gateway(model(), gateway=GatewaySettings(grpc="127.0.0.1:0")) as doors,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        answer: Any = channel.unary_unary("/skylane.v1.Worker/Answer")
        for sequence in range(5):
            message = unpack_result(unpack(answer(pack(pack_frame(frame(sequence))), timeout=WAIT_S)))
            assert message.status is Status.ANSWERED
            mask = mask_codecs.decode(message.data, "raw", (HEIGHT, WIDTH))
            np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), sequence, np.uint8))
            assert [stamp.stage for stamp in message.stamps] == list(CLOUD_STAGES)
    assert doors.node.counts["answered"] == 5  # Now that it is closed: it counts behind the answer.


def test_status_tells_what_is_served(doors: Doors) -> None:
    """A vehicle must know the model's card before it can send anything."""
    with grpc.insecure_channel(doors.grpc) as channel:
        status_of: Any = channel.unary_stream("/skylane.v1.Worker/Status")
        told = status_of(b"", timeout=WAIT_S)
        status = unpack_status(bytes(unpack(next(told))))
        told.cancel()
    assert status.state is NodeState.ONLINE
    assert [card.name for card in status.cards] == ["tiny"]


@pytest.mark.parametrize("request_bytes", [b"\xff\xff", b"\x0a\x05abc", pack(b"no message pack"), b""])
def test_what_cannot_be_read_is_an_invalid_argument(doors: Doors, request_bytes: bytes) -> None:
    """A broken client learns so, and costs nobody anything."""
    with grpc.insecure_channel(doors.grpc) as channel:
        answer: Any = channel.unary_unary("/skylane.v1.Worker/Answer")
        with pytest.raises(grpc.RpcError) as raised:
            answer(request_bytes, timeout=WAIT_S)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
