"""Connections to a worker's HTTP door, on which a whole answer, its head as well, has one time to come in."""

import io
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from edge.transports.credentials import WorkerCredentials
from shared.network.endpoint import Endpoint


def connections(
    address: Endpoint, security: WorkerCredentials, most: int, *, connect_s: float = 5.0
) -> urllib3.HTTPConnectionPool:
    """At most so many to a worker; TLS where there is an authority. None is made before it is used.

    The connect timeout of a call is for all of it to be sent; to connect there are `connect_s` of it at most. The read
    timeout is for all of its answer: a server that sends byte by byte, each in time, is late as well.

    Raises:
        WorkerAddressError: the authority cannot be used.
    """
    context = security.context(address)
    if context is None:
        return _Pool(address.host, address.port, maxsize=most, connect_s=connect_s)
    return _SecurePool(address.host, address.port, maxsize=most, connect_s=connect_s, ssl_context=context)


class _InTime(io.RawIOBase):
    """What a socket receives until a moment; `TimeoutError` from then on."""

    def __init__(self, connection: socket.socket, within_s: float) -> None:
        self._connection = connection
        self._raw = connection.makefile("rb", buffering=0)
        self._until_s = time.monotonic() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    """Its socket's timeout, as the call has set it, is for the whole."""

    def __init__(self, sock: socket.socket, *more: Any, **named: Any) -> None:
        super().__init__(sock, *more, **named)
        within_s = sock.gettimeout()
        if within_s is not None:
            self.fp.close()
            self.fp = io.BufferedReader(_InTime(sock, within_s))


class _Connection(HTTPConnection):
    response_class = _Response

    def __init__(self, *args: Any, connect_s: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._connect_s = connect_s

    def connect(self) -> None:
        with _hurried(self, self._connect_s):
            super().connect()


class _SecureConnection(HTTPSConnection):
    response_class = _Response

    def __init__(self, *args: Any, connect_s: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._connect_s = connect_s

    def connect(self) -> None:
        with _hurried(self, self._connect_s):
            super().connect()


@contextmanager
def _hurried(connection: HTTPConnection, connect_s: float) -> Iterator[None]:
    """To connect there is less time than to send, which on a narrow link takes longer; the library knows one for both."""
    whole_s = connection.timeout
    connection.timeout = min(connect_s, whole_s or connect_s)
    try:
        yield
    finally:
        connection.timeout = whole_s
    connection.sock.settimeout(whole_s)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
