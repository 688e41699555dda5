"""Peers that are broken, slow or mean, beside one that is served all the while."""

import gzip
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import cv2
import httpx
import numpy as np
import pytest

from cloud.gateway.settings import GatewaySettings
from tests.support.gateway import WAIT_S, Doors, open_gateway
from tests.support.tiny_model import model

LIMIT = 1 << 20
DETECT = b"POST /api/detect HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    settings = GatewaySettings(
        http="127.0.0.1:0", max_message_bytes=LIMIT, max_calls=4, header_timeout_s=WAIT_S, body_timeout_s=WAIT_S
    )
    with open_gateway(model(), gateway=settings) as doors:
        yield doors


@pytest.fixture(name="hasty", scope="module")
def _hasty() -> Iterator[Doors]:
    """A worker that waits half a second for a request, which a busy machine may need for one that is well."""
    settings = GatewaySettings(http="127.0.0.1:0", header_timeout_s=0.5, body_timeout_s=0.5)
    with open_gateway(model(), gateway=settings) as doors:
        yield doors


@pytest.fixture(autouse=True)
def _healthy(doors: Doors) -> Iterator[None]:
    """A client that keeps one connection asks before, throughout and after each test, and is always answered."""
    over = threading.Event()
    answers: list[int] = []
    with httpx.Client(base_url=f"http://{doors.http}", verify=False, timeout=WAIT_S, trust_env=False) as client:

        def ask() -> None:
            while not over.is_set():
                answers.append(client.get("/skylane/v1/status").status_code)
                over.wait(0.02)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(WAIT_S)
        answers.append(client.get("/skylane/v1/status").status_code)
    assert set(answers) == {200}


def connect(doors: Doors) -> socket.socket:
    """A bare connection."""
    host, _, port = doors.http.partition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def said(peer: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    told = b""
    try:
        while piece := peer.recv(1 << 16):
            told += piece
    except ConnectionResetError:
        pass
    return told


def statuses(told: bytes) -> list[int]:
    """Of the answers in what came."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", told)]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
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
    ],
)  # fmt: skip
def test_what_is_broken_is_refused_and_its_connection_ended(doors: Doors, sent: bytes, status: int) -> None:
    """The server must neither wait for what never comes, nor take the rest of a refused request for another one."""
    with closing(connect(doors)) as peer:
        peer.sendall(sent)
        assert statuses(said(peer)) == [status]


@pytest.mark.parametrize(
    "sent",
    [
        DETECT,
        b"",
        DETECT + b"Content-Length: 100\r\n\r\nabc",
        DETECT + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_what_never_comes_is_not_waited_for(hasty: Doors, sent: bytes) -> None:
    """A peer that sends half a request must not hold a place for ever."""
    with closing(connect(hasty)) as peer:
        peer.sendall(sent)
        assert statuses(said(peer)) == [408]


def test_a_body_that_grows_over_the_bound_is_cut_off_where_it_does(doors: Doors) -> None:
    """A body in chunks tells its length to nobody, so it is counted as it comes."""
    with closing(connect(doors)) as peer:
        peer.sendall(DETECT + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        for _ in range(LIMIT // (1 << 16) + 1):
            peer.sendall(chunk)
        assert statuses(said(peer)) == [413]


def test_whose_body_is_not_wanted_reads_why(doors: Doors) -> None:
    """Closed at once, with bytes unread, the connection would take the answer along."""
    with closing(connect(doors)) as peer:
        peer.sendall(DETECT + b"Content-Length: 4294967296\r\n\r\n")
        peer.sendall(bytes(1 << 24))
        assert statuses(said(peer)) == [413]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(bytes(1 << 24)), 413),
        (gzip.compress(b"x" * 9000)[:-9], 400),
        (b"no gzip", 400),
        (gzip.compress(b"") * 17, 400),
    ],
    ids=["too large", "cut short", "no gzip", "many members"],  # Gzip writes the time into what it folds.
)
def test_a_folded_body_unfolds_within_the_bound(doors: Doors, body: bytes, status: int) -> None:
    """Sixteen megabytes of zeros come in sixteen kilobytes."""
    headers = {"content-type": "image/png", "content-encoding": "gzip"}
    answer = httpx.post(f"http://{doors.http}/api/detect", content=body, headers=headers, verify=False, timeout=WAIT_S)
    assert answer.status_code == status


def test_a_drip_of_headers_is_ended_by_the_time_of_the_whole(hasty: Doors) -> None:
    """Each byte is in time; the head as a whole is not."""
    with closing(connect(hasty)) as peer:
        peer.sendall(DETECT)
        deadline = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < deadline:
                peer.sendall(b"X: y\r\n")
                if (told := _glimpse(peer)) is not None:
                    break
        except OSError:
            told = b""
        assert time.monotonic() < deadline
        assert statuses(told or b"") in ([408], [])


def _glimpse(peer: socket.socket) -> bytes | None:
    peer.settimeout(0.05)
    try:
        return peer.recv(1 << 16)
    except TimeoutError:
        return None
    finally:
        peer.settimeout(WAIT_S)


def test_of_too_many_connections_those_that_wait_longest_go() -> None:
    """A flood of silent peers pushes out itself; whoever asks is let in."""
    settings = GatewaySettings(http="127.0.0.1:0", max_calls=4, header_timeout_s=WAIT_S * 2)  # Eight connections.
    with open_gateway(model(), gateway=settings) as doors:
        peers = [connect(doors) for _ in range(20)]
        for peer in peers[:12]:
            assert said(peer) == b""
        assert httpx.get(f"http://{doors.http}/healthz", verify=False, timeout=WAIT_S).status_code == 200
        for peer in peers:
            peer.close()


def test_a_caller_that_takes_no_answer_is_cut_off() -> None:
    """What it was told lies in this process's memory until it takes it."""
    settings = GatewaySettings(http="127.0.0.1:0", answer_s=0.5)
    noise = np.random.default_rng(0).integers(0, 255, (1500, 2500, 3), np.uint8)
    _, picture = cv2.imencode(".png", noise)
    with open_gateway(model(), gateway=settings) as doors, closing(socket.socket()) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        host, _, port = doors.http.partition(":")
        peer.connect((host, int(port)))
        head = DETECT + b"Accept: image/png\r\nContent-Length: %d\r\n\r\n" % len(picture)
        peer.sendall(head + picture.tobytes())
        hung_up = select.poll()
        hung_up.register(peer, select.POLLHUP | select.POLLERR)
        assert hung_up.poll(WAIT_S * 1000)


def test_requests_without_end_behind_one_another_are_refused(doors: Doors) -> None:
    """Each that waits takes memory, and its peer reads no answer."""
    with closing(connect(doors)) as peer:
        peer.sendall(b"GET /skylane/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        assert statuses(said(peer)) == [400]
