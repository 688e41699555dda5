"""Sockets of the gateway's servers."""

import socket
from contextlib import ExitStack

import pytest

from cloud.gateway.bind import BoundedListener, ListenError, listen


def test_connections_have_no_send_delay() -> None:
    """Otherwise a response body waits for the acknowledgement of its headers, which took 40 ms."""
    with listen("http", "127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_connections_beyond_the_limit_are_closed_until_another_one_ends() -> None:
    """Idle ones would otherwise use up the open files of the worker, its vehicles over MQTT included."""
    with ExitStack() as stack:
        listener = stack.enter_context(BoundedListener(listen("http", "127.0.0.1:0"), 2))

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(listener.getsockname(), 30.0))

        accepted = []
        for _ in range(2):
            connect()
            accepted.append(stack.enter_context(listener.accept()[0]))
        third = connect()
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert third.recv(1) == b""
        accepted[0].close()
        connect()
        stack.enter_context(listener.accept()[0])


def test_an_address_needs_a_port() -> None:
    """The message says what to write."""
    with pytest.raises(ListenError, match="write HOST:PORT"):
        listen("http", "127.0.0.1")


def test_an_address_of_another_machine_is_refused_in_plain_words() -> None:
    """Python's own message repeats the address as a tuple."""
    with pytest.raises(ListenError) as refused:
        listen("http", "192.0.2.1:80")
    assert str(refused.value).startswith(
        "--http: cannot listen at 192.0.2.1:80: Cannot assign requested address: give an"
    )
