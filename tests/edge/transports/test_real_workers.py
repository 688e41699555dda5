"""Every transport without a broker, with real workers."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from edge.transports.transport import RawReply, Transport
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import NoWorkerError
from ops.broker.certificate_authority import CertificateAuthority
from shared import clock
from shared.clock import Deadline
from shared.inference.engine import InferenceError, Outputs
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from tests.edge.transports.conftest import DIRECT, WAIT_S, Open, await_problem
from tests.support.gateway import GatewayWorker, open_gateway
from tests.support.tiny_model import Engine, frame, model

every_transport = pytest.mark.parametrize("name", DIRECT)
each_channel = pytest.mark.parametrize("name", ["grpc", "oip-rest"])  # Transports of one kind share a channel.


def address_of(worker: GatewayWorker, name: str) -> str:
    """Returns the address of the worker for a transport."""
    return worker.grpc if name.endswith("grpc") else worker.http


def answer_to(transport: Transport, message: FrameMessage) -> tuple[RawReply, ResultMessage]:
    """Sends a frame and returns its reply, encoded and decoded."""
    undelivered: queue.SimpleQueue[str] = queue.SimpleQueue()
    transport.send(message, transport.pack(message), undelivered.put)
    reply = transport.replies.get(timeout=WAIT_S)
    assert reply is not None
    assert undelivered.empty()
    return reply, reply.read()


def answer_in_time(transport: Transport, message: FrameMessage) -> ResultMessage | None:
    """Sends a frame and returns its reply, or None if there is none within a second."""
    transport.send(message, transport.pack(message), lambda _: None)
    try:
        reply = transport.replies.get(timeout=1.0)
    except queue.Empty:
        return None
    assert reply is not None
    return reply.read()


FAILING = 13  # The engine fails for frames with this number.


class FailingEngine(Engine):
    """Fails for some frames."""

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        if batch[0, 0, 0, 0] == FAILING:
            raise InferenceError("no memory")
        return super().infer(batch)


REFUSALS: list[tuple[dict[str, Any], Status, str]] = [
    ({"data": frame(FAILING).data}, Status.FAILED, "no memory"),
    ({"codec": "jpeg"}, Status.REJECTED, "JPEG"),
    ({"options": RequestOptions("jpeg")}, Status.REJECTED, "codec"),
    ({"version": "9"}, Status.REJECTED, "9"),
]


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(model(engine=FailingEngine())) as worker:
        yield worker


@every_transport
def test_a_refusal_contains_the_workers_reason(name: str, worker: GatewayWorker, reach: Open) -> None:
    """Every protocol transfers the reason, and the next frame is answered."""
    transport = reach(name, address_of(worker, name))
    transport.wait_for_card(WAIT_S)
    for sequence, (changes, status, reason) in enumerate(REFUSALS):
        _, refused = answer_to(transport, replace(frame(sequence), **changes))
        assert (refused.status, refused.worker) == (status, "w"), changes
        assert reason in refused.reason
    assert answer_to(transport, frame(99))[1].status is Status.ANSWERED
    while (late := answer_in_time(transport, replace(frame(1), deadline=Deadline(0)))) is None:
        pass  # A busy machine may not reply to a budget of 0 in time.
    assert (late.status, "deadline" in late.reason) == (Status.EXPIRED, True)


@each_channel
def test_a_full_worker_refuses_frames_as_overloaded(name: str, reach: Open) -> None:
    """Some frames are refused at once, and every frame gets a reply."""
    release = threading.Event()
    with open_gateway(model(lambda: _wait(release)), max_frames=1) as worker:
        transport = reach(name, address_of(worker, name), window=16)
        transport.wait_for_card(WAIT_S)
        for sequence in range(16):
            message = frame(sequence)
            transport.send(message, transport.pack(message), lambda _: None)
        answers = []
        for _ in range(16):
            reply = transport.replies.get(timeout=WAIT_S)
            assert reply is not None
            answers.append(reply.read())
            release.set()
    assert {answer.status for answer in answers} == {Status.OVERLOADED, Status.ANSWERED}
    assert len({answer.id for answer in answers}) == 16


@each_channel
def test_the_workers_clock_is_probed(name: str, worker: GatewayWorker, reach: Open) -> None:
    """Every transport can split the network time into uplink and downlink."""
    clocks, stop = WorkerClocks(), threading.Event()
    transport = reach(name, address_of(worker, name))
    transport.wait_for_card(WAIT_S)
    probing = threading.Thread(target=transport.probe_clocks, args=(clocks, stop))
    probing.start()
    deadline_ns = clock.now_ns() + round(WAIT_S * 1e9)
    while not clocks.last_echo("cloud/w/s9").at_ns:
        assert clock.now_ns() < deadline_ns
        stop.wait(0.01)
    stop.set()
    probing.join(WAIT_S)
    assert not clocks.ignored


@each_channel
def test_a_restarted_worker_is_found_again(
    name: str, reach: Open, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """While it is down, frames are reported as undelivered; its loss and its return are logged."""
    with open_gateway(model()) as worker:
        address = address_of(worker, name)
        transport = reach(name, address)
        transport.wait_for_card(WAIT_S)
    undelivered: queue.SimpleQueue[str] = queue.SimpleQueue()
    message = frame(1)
    transport.send(message, transport.pack(message), undelivered.put)
    assert undelivered.get(timeout=WAIT_S) == "no_worker"
    assert not transport.workers.wait_until_served(0.0)
    with open_gateway(model(), grpc=worker.grpc, http=worker.http):
        assert transport.workers.wait_until_served(WAIT_S)
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
    """Waiting would not help; with the token the vehicle is accepted, under its own name only."""
    tokens = tmp_path / "tokens"
    tokens.write_text("car 0123456789abcdef\n")
    with open_gateway(model(), grpc="127.0.0.1:0", http="127.0.0.1:0", tokens=tokens) as worker:
        with pytest.raises(NoWorkerError, match="no token"):
            reach(name, address_of(worker, name)).wait_for_card(3600.0)
        monkeypatch.setenv("SKYLANE_WORKER_TOKEN", "0123456789abcdef")
        transport = reach(name, address_of(worker, name))
        transport.wait_for_card(WAIT_S)
        assert answer_to(transport, frame(1))[1].status is Status.ANSWERED
        with pytest.raises(NoWorkerError, match="does not allow the name"):
            reach(name, address_of(worker, name), vehicle="bus").wait_for_card(WAIT_S)


@each_channel
def test_tls_verifies_the_workers_certificate(name: str, reach: Open, tmp_path: Path) -> None:
    """Another authority, or none, leads to an error that names the address."""
    authority, other = CertificateAuthority(tmp_path / "own"), CertificateAuthority(tmp_path / "other")
    certificate = authority.broker(["127.0.0.1"], days=1).file
    with open_gateway(
        model(),
        grpc="127.0.0.1:0",
        http="127.0.0.1:0",
        gateway_tls_cert=certificate,
        gateway_tls_key=certificate.with_suffix(".key"),
    ) as worker:
        transport = reach(name, address_of(worker, name), worker_tls_ca=authority.certificate_file)
        transport.wait_for_card(WAIT_S)
        assert answer_to(transport, frame(1))[1].status is Status.ANSWERED
        transport = reach(name, address_of(worker, name), worker_tls_ca=other.certificate_file)
        await_problem(transport, address_of(worker, name))
        with pytest.raises(NoWorkerError, match=f"{address_of(worker, name)}.*issuer certificate"):
            transport.wait_for_card(0.0)
        transport = reach(name, address_of(worker, name))
        await_problem(transport, address_of(worker, name))
        with pytest.raises(NoWorkerError, match=address_of(worker, name)):
            transport.wait_for_card(0.0)


@each_channel
def test_unused_addresses_are_listed_with_the_reason(name: str, reach: Open) -> None:
    """Workers that serve the model are not listed, whether they had frames or were not needed."""
    with (
        open_gateway(model(), worker="one") as used,
        open_gateway(model(), worker="idle") as idle,
        open_gateway(model(name="other"), worker="two") as other,
    ):
        addresses = [address_of(each, name) for each in (used, idle, other)]
        transport = reach(name, *addresses, "127.0.0.1:1")
        wanted = {addresses[2]: "it does not serve tiny"}
        while len(transport.workers.online()) < 2 or transport.unused().get(addresses[2]) != wanted[addresses[2]]:
            transport.workers.last_failure_ns(after_ns=1 << 62, timeout_s=0.01)
        answer_to(transport, frame(1))
        while "reached" not in transport.unused()["127.0.0.1:1"]:
            transport.workers.last_failure_ns(after_ns=1 << 62, timeout_s=0.01)
        assert transport.unused().keys() == {addresses[2], "127.0.0.1:1"}


def test_frames_go_to_the_least_busy_worker(reach: Open) -> None:
    """With a fixed rotation, a slow worker would delay every other frame."""
    release = threading.Event()
    slow = model(lambda: _wait(release))
    with open_gateway(slow, worker="slow") as held, open_gateway(model(), worker="quick") as free:
        transport = reach("grpc", held.grpc, free.grpc)
        while len(transport.workers.online()) < 2:
            transport.workers.last_failure_ns(after_ns=1 << 62, timeout_s=0.01)
        answers: list[str] = []
        for sequence in range(10):
            message = frame(sequence)
            transport.send(message, transport.pack(message), lambda _: None)
            if sequence:  # The first frame waits at the slow worker, or the quick one answers it.
                answers.append(_next(transport).worker)
        assert set(answers) == {"quick"}
        release.set()
        answers.append(_next(transport).worker)
    assert sorted(answers) == ["quick"] * 9 + ["slow"]


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def _next(transport: Transport) -> ResultMessage:
    reply = transport.replies.get(timeout=WAIT_S)
    assert reply is not None
    return reply.read()
