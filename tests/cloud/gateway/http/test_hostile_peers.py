"""Broken, slow and malicious HTTP peers, while another client is served."""

import gzip
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import cv2
import httpx
import numpy as np
import pytest

from cloud.gateway.limits import GatewayTimeouts
from tests.support.gateway import WAIT_S, GatewayWorker, open_gateway
from tests.support.http_calls import DETECT, connect, receive_all, statuses
from tests.support.tiny_model import model

LIMIT = 1 << 20


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(
        model(),
        http="127.0.0.1:0",
        max_message_bytes=LIMIT,
        max_calls=4,
        timeouts=GatewayTimeouts(header_s=WAIT_S, body_s=WAIT_S),
    ) as worker:
        yield worker


@pytest.fixture(name="impatient", scope="module")
def _impatient() -> Iterator[GatewayWorker]:
    """A worker with a timeout of 0.5 s, which may be too short for a well-behaved client on a busy machine."""
    with open_gateway(model(), http="127.0.0.1:0", timeouts=GatewayTimeouts(header_s=0.5, body_s=0.5)) as worker:
        yield worker


@pytest.fixture(autouse=True)
def _other_client(worker: GatewayWorker) -> Iterator[None]:
    """A client that calls over one connection before, during and after each test, and must always succeed."""
    stopped = threading.Event()
    received: list[int] = []
    with httpx.Client(base_url=f"http://{worker.http}", verify=False, timeout=WAIT_S, trust_env=False) as client:

        def call() -> None:
            while not stopped.is_set():
                received.append(client.get("/skylane/v1/status").status_code)
                stopped.wait(0.02)

        thread = threading.Thread(target=call)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(WAIT_S)
        received.append(client.get("/skylane/v1/status").status_code)
    assert set(received) == {200}


MALFORMED = [
    (DETECT + b"Content-Length: 4294967296\r\n\r\n", 413),
    (DETECT + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    (DETECT + b"Content-Length: -5\r\n\r\n", 400),
    (DETECT + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
    (DETECT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /", 400),
    (DETECT + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET /", 400),
    (DETECT + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    (DETECT + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    (DETECT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", 400),
    (DETECT + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", 400),
    (DETECT + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 17 + b"\r\n", 400),
    (DETECT + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * (1 << 18), 431),
    (DETECT + b"X: " + b"y" * (1 << 18), 431),
    (DETECT + b"X: a\nb\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"\x00" * 4096, 400),
    (DETECT + b"Content-Encoding: br\r\nContent-Length: 3\r\n\r\nabc", 415),
]  # fmt: skip


def test_a_malformed_request_fails_and_closes_its_connection(worker: GatewayWorker) -> None:
    """The server must not wait for missing bytes, nor read the rest of a rejected request as another request."""
    for sent, status in MALFORMED:
        with closing(connect(worker)) as peer:
            peer.sendall(sent)
            assert statuses(receive_all(peer)) == [status], sent[:200]


def test_an_incomplete_request_times_out(impatient: GatewayWorker) -> None:
    """A peer that sends half a request must not occupy the server forever."""
    chunk = DETECT + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    pieces = (DETECT, b"", DETECT + b"Content-Length: 100\r\n\r\nabc", chunk)
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(connect(impatient))) for _ in pieces]
        for peer, sent in zip(peers, pieces, strict=True):
            peer.sendall(sent)
        assert [statuses(receive_all(peer)) for peer in peers] == [[408]] * len(pieces)


def test_a_chunked_body_is_rejected_at_the_size_limit(worker: GatewayWorker) -> None:
    """A chunked body has no declared length, so its size is counted as it arrives."""
    with closing(connect(worker)) as peer:
        peer.sendall(DETECT + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        for _ in range(LIMIT // (1 << 16) + 1):
            peer.sendall(chunk)
        assert statuses(receive_all(peer)) == [413]


def test_the_sender_of_a_rejected_body_receives_the_error(worker: GatewayWorker) -> None:
    """If the connection were closed with unread bytes, the kernel would discard the response."""
    with closing(connect(worker)) as peer:
        peer.sendall(DETECT + b"Content-Length: 4294967296\r\n\r\n")
        peer.sendall(bytes(1 << 24))
        assert statuses(receive_all(peer)) == [413]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(bytes(1 << 24)), 413),
        (gzip.compress(b"x" * 9000)[:-9], 400),
        (b"no gzip", 400),
        (gzip.compress(b"") * 17, 400),
    ],
    ids=["too large", "cut short", "no gzip", "many members"],  # The compressed bytes contain the current time.
)
def test_a_compressed_body_is_limited_by_its_decompressed_size(worker: GatewayWorker, body: bytes, status: int) -> None:
    """Sixteen megabytes of zeros compress to sixteen kilobytes."""
    headers = {"content-type": "image/png", "content-encoding": "gzip"}
    response = httpx.post(
        f"http://{worker.http}/api/detect", content=body, headers=headers, verify=False, timeout=WAIT_S
    )
    assert response.status_code == status


def test_headers_that_arrive_slowly_time_out(impatient: GatewayWorker) -> None:
    """The timeout applies to all headers together, not to each piece."""
    with closing(connect(impatient)) as peer:
        peer.sendall(DETECT)
        deadline = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < deadline:
                peer.sendall(b"X: y\r\n")
                if (received := _receive_now(peer)) is not None:
                    break
        except OSError:
            received = b""
        assert time.monotonic() < deadline
        assert statuses(received or b"") in ([408], [])


def _receive_now(peer: socket.socket) -> bytes | None:
    peer.settimeout(0.05)
    try:
        return peer.recv(1 << 16)
    except TimeoutError:
        return None
    finally:
        peer.settimeout(WAIT_S)


def test_beyond_the_connection_limit_the_longest_idle_ones_are_closed() -> None:
    """A flood of silent peers evicts itself, so that other callers can connect."""
    with open_gateway(
        model(), http="127.0.0.1:0", max_calls=4, timeouts=GatewayTimeouts(header_s=WAIT_S * 2)
    ) as worker:
        peers = [connect(worker) for _ in range(20)]
        for peer in peers[:12]:
            assert receive_all(peer) == b""
        assert httpx.get(f"http://{worker.http}/healthz", verify=False, timeout=WAIT_S).status_code == 200
        for peer in peers:
            peer.close()


def test_a_caller_that_does_not_receive_its_response_is_disconnected() -> None:
    """The response occupies memory of the worker until then."""
    noise = np.random.default_rng(0).integers(0, 255, (1500, 2500, 3), np.uint8)
    _, image = cv2.imencode(".png", noise)
    with (
        open_gateway(model(), http="127.0.0.1:0", timeouts=GatewayTimeouts(send_s=0.5)) as worker,
        closing(socket.socket()) as peer,
    ):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        host, _, port = worker.http.partition(":")
        peer.connect((host, int(port)))
        head = DETECT + b"Accept: image/png\r\nContent-Length: %d\r\n\r\n" % len(image)
        peer.sendall(head + image.tobytes())
        poll = select.poll()
        poll.register(peer, select.POLLHUP | select.POLLERR)
        assert poll.poll(WAIT_S * 1000)


def test_too_many_pipelined_requests_are_rejected(worker: GatewayWorker) -> None:
    """Each one that waits takes memory, and the peer reads no response."""
    with closing(connect(worker)) as peer:
        peer.sendall(b"GET /skylane/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        assert statuses(receive_all(peer)) == [400]
