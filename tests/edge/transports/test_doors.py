"""Every transport at the doors of a real worker: whatever becomes of a frame, the vehicle is told, and by whom."""

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cloud.engines.engine import InferenceError
from cloud.gateway.settings import GatewaySettings
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_directory import NoWorkerError
from edge.transports.transport import Reply, Transport
from shared import clock
from shared.broker.certificate_authority import CertificateAuthority
from shared.imaging import mask_codecs
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.stages import Stage, Stamp
from tests.edge.transports.conftest import DIRECT, WAIT_S, Open, await_problem
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

every_transport = pytest.mark.parametrize("name", DIRECT)


def door(doors: Doors, name: str) -> str:
    """Where a transport finds the worker."""
    return doors.grpc if name.endswith("grpc") else doors.http


def answer_to(transport: Transport, message: FrameMessage) -> tuple[Reply, ResultMessage]:
    """Send a frame and wait for what becomes of it."""
    unreached: queue.SimpleQueue[str] = queue.SimpleQueue()
    transport.send(message, transport.pack(message), unreached.put)
    reply = transport.replies.get(timeout=WAIT_S)
    assert reply is not None
    assert unreached.empty()
    return reply, reply.read()


def answer_in_time(transport: Transport, message: FrameMessage) -> ResultMessage | None:
    """Send a frame; its answer, or None where there is none soon."""
    transport.send(message, transport.pack(message), lambda _: None)
    try:
        reply = transport.replies.get(timeout=1.0)
    except queue.Empty:
        return None
    assert reply is not None
    return reply.read()


@every_transport
def test_a_frame_is_answered_with_its_mask_and_all_stamps(name: str, reach: Open) -> None:
    """What MQTT brings, by any other door: the same row follows from it."""
    with open_gateway(model()) as doors:
        transport = reach(name, door(doors, name))
        assert transport.wait_for_card(WAIT_S).name == "tiny"
        assert transport.online() == [("w", "s9")]
        for sequence in range(1, 5):
            sent = Stamp(Stage.SENT, "edge/car/s1", clock.now_ns())
            message = replace(frame(sequence), stamps=(sent,), want=RequestOptions("zstd"))
            reply, answer = answer_to(transport, message)
            assert answer.status is Status.ANSWERED, answer.reason
            assert answer.id == message.id
            mask = mask_codecs.decode(answer.data, answer.codec, (HEIGHT, WIDTH))
            np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), sequence, np.uint8))
            assert (answer.codec, answer.worker, answer.batch_size) == ("zstd", "w", 1)
            assert answer.stamps[0] == sent
            assert {stamp.node for stamp in answer.stamps[1:]} == {"cloud/w/s9"}
            assert reply.returned_ns > sent.at_ns
            assert 0 < len(answer.data) < reply.size
            assert transport.pack(message).size > len(message.data)


@every_transport
@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"codec": "jpeg"}, Status.REJECTED, "JPEG"),
        ({"want": RequestOptions("jpeg")}, Status.REJECTED, "codec"),
        ({"version": "9"}, Status.REJECTED, "9"),
        ({"budget_ms": 0}, Status.EXPIRED, "budget"),
    ],
    ids=["no picture", "no codec", "no version", "no time"],
)
def test_a_frame_that_is_refused_says_why(
    name: str,
    reach: Open,
    *,
    changes: dict[str, object],
    status: Status,
    reason: str,
) -> None:
    """The worker's own words, whatever protocol carries them."""
    with open_gateway(model()) as doors:
        transport = reach(name, door(doors, name))
        transport.wait_for_card(WAIT_S)
        while (answer := answer_in_time(transport, replace(frame(1), **changes))) is None:
            pass  # A busy machine may not answer a budget of 0 within its grace.
    assert answer.status is status
    assert reason in answer.reason
    assert answer.worker == "w"


@every_transport
def test_an_engine_that_fails_fails_its_frame(name: str, reach: Open) -> None:
    """And the next one is answered."""
    broken = threading.Event()
    broken.set()

    def act() -> None:
        if broken.is_set():
            raise InferenceError("no memory")

    with open_gateway(model(act)) as doors:
        transport = reach(name, door(doors, name))
        transport.wait_for_card(WAIT_S)
        _, failed = answer_to(transport, frame(1))
        broken.clear()
        _, answered = answer_to(transport, frame(2))
    assert (failed.status, answered.status) == (Status.FAILED, Status.ANSWERED)
    assert failed.reason


@every_transport
def test_a_worker_that_is_full_overloads(name: str, reach: Open) -> None:
    """More are sent than wait there: some are told so at once, and every one has its end."""
    go_on = threading.Event()
    with open_gateway(model(lambda: _wait(go_on)), max_frames=1) as doors:
        transport = reach(name, door(doors, name), window=16)
        transport.wait_for_card(WAIT_S)
        for sequence in range(16):
            message = frame(sequence)
            transport.send(message, transport.pack(message), lambda _: None)
        answers = []
        for _ in range(16):
            reply = transport.replies.get(timeout=WAIT_S)
            assert reply is not None
            answers.append(reply.read())
            go_on.set()
    assert {answer.status for answer in answers} == {Status.OVERLOADED, Status.ANSWERED}
    assert len({answer.id for answer in answers}) == 16


@every_transport
def test_the_workers_clock_is_probed_beside_the_frames(name: str, reach: Open) -> None:
    """Uplink and downlink can be told apart on every transport."""
    clocks, stop = Clocks(), threading.Event()
    with open_gateway(model()) as doors:
        transport = reach(name, door(doors, name))
        transport.wait_for_card(WAIT_S)
        probing = threading.Thread(target=transport.probe_clocks, args=(clocks, stop))
        probing.start()
        until_ns = clock.now_ns() + round(WAIT_S * 1e9)
        while not clocks.echoed_ns("cloud/w/s9"):
            assert clock.now_ns() < until_ns
            stop.wait(0.01)
        stop.set()
        probing.join(WAIT_S)
    assert not clocks.ignored


@pytest.mark.parametrize("name", ["grpc", "oip-rest"])
def test_a_worker_that_ends_takes_no_more_and_comes_back_as_another(
    name: str, reach: Open, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Who is there is followed, and logged; the frames that nobody gets are told to be so."""
    settings = None
    with open_gateway(model()) as doors:
        address = door(doors, name)
        settings = GatewaySettings(grpc=doors.grpc, http=doors.http)
        transport = reach(name, address)
        transport.wait_for_card(WAIT_S)
    unreached: queue.SimpleQueue[str] = queue.SimpleQueue()
    message = frame(1)
    transport.send(message, transport.pack(message), unreached.put)
    assert unreached.get(timeout=WAIT_S) == "no_worker"
    assert not transport.wait_until_served(0.0)
    with open_gateway(model(), gateway=settings):
        assert transport.wait_until_served(WAIT_S)
        _, answer = answer_to(transport, message)
        assert answer.status is Status.ANSWERED
    lines = [line for line in log_lines() if line.get("address") == address and "connect" in line["event"]]
    assert [(line["event"], line["worker"]) for line in lines] == [
        ("connected to worker", "w"),
        ("connection lost", "w"),
        ("connected to worker", "w"),
    ]


@pytest.mark.parametrize("name", ["grpc", "tfs-rest"])
def test_a_vehicle_without_a_token_is_refused_at_once(
    name: str, reach: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of waiting would say nothing more; with the token it is let in, as itself alone."""
    tokens = tmp_path / "tokens"
    tokens.write_text("car 0123456789abcdef\n")
    gateway = GatewaySettings(grpc="127.0.0.1:0", http="127.0.0.1:0", tokens=tokens)
    with open_gateway(model(), gateway=gateway) as doors:
        with pytest.raises(NoWorkerError, match="no token"):
            reach(name, door(doors, name)).wait_for_card(3600.0)
        monkeypatch.setenv("SKYLANE_WORKER_TOKEN", "0123456789abcdef")
        transport = reach(name, door(doors, name))
        transport.wait_for_card(WAIT_S)
        assert answer_to(transport, frame(1))[1].status is Status.ANSWERED
        with pytest.raises(NoWorkerError, match="car's"):
            reach(name, door(doors, name), vehicle="bus").wait_for_card(WAIT_S)


@every_transport
def test_tls_lets_in_whom_the_authority_vouches_for(name: str, reach: Open, tmp_path: Path) -> None:
    """Frames are pictures of streets: nobody on the way may read them."""
    authority, other = CertificateAuthority(tmp_path / "ours"), CertificateAuthority(tmp_path / "other")
    certificate = authority.broker(["127.0.0.1"], days=1).file
    gateway = GatewaySettings(
        grpc="127.0.0.1:0", http="127.0.0.1:0", tls_cert=certificate, tls_key=certificate.with_suffix(".key")
    )
    with open_gateway(model(), gateway=gateway) as doors:
        transport = reach(name, door(doors, name), worker_tls_ca=authority.certificate_file)
        transport.wait_for_card(WAIT_S)
        assert answer_to(transport, frame(1))[1].status is Status.ANSWERED
        transport = reach(name, door(doors, name), worker_tls_ca=other.certificate_file)
        await_problem(transport, door(doors, name))
        with pytest.raises(NoWorkerError, match=f"{door(doors, name)}.*issuer certificate"):
            transport.wait_for_card(0.0)
        transport = reach(name, door(doors, name))
        await_problem(transport, door(doors, name))
        with pytest.raises(NoWorkerError, match=door(doors, name)):
            transport.wait_for_card(0.0)


@pytest.mark.parametrize("name", ["grpc", "oip-rest"])
def test_an_address_without_a_worker_that_serves_is_told_apart(name: str, reach: Open) -> None:
    """One that was there and was not needed is none of them, and one that had frames is not either."""
    with (
        open_gateway(model(), worker="one") as used,
        open_gateway(model(), worker="idle") as idle,
        open_gateway(model(name="other"), worker="two") as other,
    ):
        addresses = [door(each, name) for each in (used, idle, other)]
        transport = reach(name, *addresses, "127.0.0.1:1")
        wanted = {addresses[2]: "it does not serve tiny"}
        while len(transport.online()) < 2 or transport.unused().get(addresses[2]) != wanted[addresses[2]]:
            transport.departed_ns(after_ns=1 << 62, timeout_s=0.01)
        answer_to(transport, frame(1))
        while "reached" not in transport.unused()["127.0.0.1:1"]:
            transport.departed_ns(after_ns=1 << 62, timeout_s=0.01)
        assert transport.unused().keys() == {addresses[2], "127.0.0.1:1"}


def test_frames_go_to_the_least_busy_worker(reach: Open) -> None:
    """One that is slow gets fewer; turn by turn it would hold every other frame up."""
    go_on = threading.Event()
    slow = model(lambda: _wait(go_on))
    with open_gateway(slow, worker="slow") as held, open_gateway(model(), worker="quick") as free:
        transport = reach("grpc", held.grpc, free.grpc)
        while len(transport.online()) < 2:
            transport.departed_ns(after_ns=1 << 62, timeout_s=0.01)
        answers: list[str] = []
        for sequence in range(10):
            message = frame(sequence)
            transport.send(message, transport.pack(message), lambda _: None)
            if sequence:  # The first waits at the slow one, or comes back at once from the quick one.
                answers.append(_next(transport).worker)
        assert set(answers) == {"quick"}
        go_on.set()
        answers.append(_next(transport).worker)
    assert sorted(answers) == ["quick"] * 9 + ["slow"]


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def _next(transport: Transport) -> ResultMessage:
    reply = transport.replies.get(timeout=WAIT_S)
    assert reply is not None
    return reply.read()
