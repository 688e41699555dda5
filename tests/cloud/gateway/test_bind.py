import socket

from cloud.gateway.bind import listen


def test_a_connection_sends_at_once() -> None:
    """The body of an answer follows its head: held back until the head is acknowledged, it came 40 ms later."""
    with listen("HTTP", "127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
