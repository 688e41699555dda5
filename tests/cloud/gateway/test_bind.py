"""Sockets of the gateway's servers."""

import socket

from cloud.gateway.bind import listen


def test_connections_have_no_send_delay() -> None:
    """Otherwise a response body waits for the acknowledgement of its headers, which took 40 ms."""
    with listen("http", "127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
