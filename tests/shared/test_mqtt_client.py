from typing import Any

import pytest
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion

from shared.fields import MAX_MESSAGE_BYTES
from shared.link_watch import LinkWatch
from shared.mqtt_client import WatchedClient

RECORD_BYTES = 1 << 14


class Records:
    """A socket with TLS: it takes a record at a call, and after so many no more for the moment."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent = bytearray()

    def send(self, buf: Any) -> int:
        """Take one record."""
        if not self.room:
            raise BlockingIOError
        self.room -= 1
        self.sent += buf[:RECORD_BYTES]
        return min(len(buf), RECORD_BYTES)


def _client() -> WatchedClient:
    return WatchedClient(
        "test",
        MQTTProtocolVersion.MQTTv5,
        LinkWatch(15.0, 5.0),
        received=lambda _: None,
        will=None,
        secure=None,
        timeout_s=15.0,
    )


def _sent(frame: bytes, room: int) -> tuple[int, bytes]:
    """How much of a frame one call sends where there is room for so many records, and what that was."""
    client = _client()
    socket: Any = Records(room)
    client._sock = socket
    try:
        return client._sock_send(frame), bytes(socket.sent)
    finally:
        client._sock = None


def test_a_frame_leaves_at_a_call_though_tls_takes_a_record_at_a_time() -> None:
    """paho copies all that is left of a frame before each call: a raw picture's 108 records would be copied 54 times."""
    frame = bytes(range(256)) * 512
    assert _sent(frame, room=100) == (len(frame), frame)


def test_what_there_is_no_room_for_waits() -> None:
    """A narrow link takes a part; the rest must be neither lost nor sent twice."""
    frame = bytes(range(256)) * 512
    assert _sent(frame, room=3) == (3 * RECORD_BYTES, frame[: 3 * RECORD_BYTES])


@pytest.mark.parametrize(("command", "size"), [(0x30, MAX_MESSAGE_BYTES + (1 << 17) + 1), (0x90, (1 << 17) + 1)])
def test_a_packet_that_nobody_of_ours_sends_ends_the_connection_before_memory_is_taken(command: int, size: int) -> None:
    """Five bytes can say that a quarter of a gigabyte follows."""
    client = _client()
    packet: Any = client._in_packet
    packet |= {"command": command, "have_remaining": 1, "remaining_length": size, "to_process": size}
    assert client._packet_read() == MQTTErrorCode.MQTT_ERR_CONN_LOST
    assert not packet["packet"]
