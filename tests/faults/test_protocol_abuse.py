"""Protocol abuse: an MQTT client publishes forbidden messages, on an open and on a secured broker."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from ops.link.link import LOOPBACK
from ops.processes.vehicle_process import VehicleError, VehicleProcess
from shared.messages import topics
from shared.messages.frame import Status, unpack_result
from shared.messages.topics import LOADS, MASKS, PREFIX, WORKER_STATUS, FrameId
from shared.runlog.latency_log import Outcome
from tests.support.faults.connections import established
from tests.support.faults.finding import Figure
from tests.support.faults.hostile.intruder import CAMERA, Attempt, Intruder, frame, fresh_id
from tests.support.faults.rig import MODEL, Rig, RigError

_GOOD, _INTRUDER, _WORKER, _OTHER_WORKER = "car-1", "mallory", "worker-1", "worker-2"
_RATE_HZ = 20.0
_MORE = 40  # Frames of the good vehicle before and after the abuse.
_FRAMES = f"frames/{MODEL}/{_INTRUDER}/{CAMERA}"  # A topic on which the intruder may publish.


def _refused(what: str, payload: Callable[[FrameId], bytes], response_topic: str | None = None) -> Attempt:
    frame_id = fresh_id(_INTRUDER)
    return Attempt(what, _FRAMES, payload(frame_id), response_topic, frame_id)


# Messages that the broker delivers and a worker must reject.
_REFUSED = (
    _refused("a version of no protocol", lambda own: frame(own, other_version=True)),
    _refused("another model than the topic's", lambda own: frame(own, model="road-large")),
    _refused("another vehicle's id", lambda _: frame(fresh_id(_GOOD))),
    _refused("a foreign response topic", frame, MASKS.of(vehicle=_GOOD, camera=CAMERA)),
    _refused("no message at all", lambda _: b"x"),
)
# Messages that a secured broker must deny to a vehicle.
_DENIED = (
    Attempt("another vehicle's frame", f"frames/{MODEL}/{_GOOD}/{CAMERA}", frame(fresh_id(_GOOD))),
    Attempt("another vehicle's retry", f"retries/{_WORKER}/{MODEL}/{_GOOD}/{CAMERA}", frame(fresh_id(_GOOD))),
    Attempt("another vehicle's mask", f"masks/{_GOOD}/{CAMERA}"),
    Attempt("another vehicle's probe", f"probes/{_WORKER}/{_GOOD}"),
    Attempt("another vehicle's status", f"status/vehicle/{_GOOD}"),
    Attempt("a worker's status", f"status/worker/{_WORKER}"),
    Attempt("a worker's load", f"load/{_WORKER}"),
    Attempt("a worker's echo", f"echoes/{_GOOD}/{_WORKER}"),
    Attempt("an operator's order", f"control/{_WORKER}/unload"),
    Attempt("an answer to an operator", "replies/anna/nonce"),
)
_ON_OPEN = _DENIED[:4]  # Messages that an open broker delivers; the receivers must ignore them.
_EVERYTHING = ("#", "+/+/+/+/+", f"{PREFIX}/masks/{_GOOD}/{CAMERA}", f"{PREFIX}/frames/+/+/+")


@dataclass(frozen=True, slots=True)
class Visit:
    """The result of an intruder's attempts."""

    good: VehicleProcess
    rejected: int  # Messages that a worker rejected.
    not_rejected: tuple[str, ...]
    denied: int  # Messages that the broker denied.
    passed: tuple[str, ...]  # Messages that the broker should have denied.
    leaks: int  # Messages for others that the intruder received.
    has_lost_connection: bool  # Whether the good vehicle lost its connection.
    shares_name: bool  # Whether another process could run with the good vehicle's name.


@pytest.mark.faults(
    17,
    "wrong version, wrong model, another's id, a foreign response topic, a taken name: on an open and a secured broker",
    "denied and counted; nothing leaks; a good vehicle's frames are answered meanwhile",
)
def test_manners(rig: Rig) -> None:
    """Runs an intruder without certificate on an open broker, and one with a vehicle's certificate on a secured one."""
    opened = _visit(rig, "open", rig.broker(), None)
    certs = _certificates(rig.folder / "certs")
    secured = _visit(rig, "secured", rig.broker(secured=certs), certs)
    visits = (opened, secured)
    accounts = rig.accounts(*(visit.good for visit in visits))
    sent = [row for visit in visits for row in visit.good.rows() if row["attempts"] != "0"]
    rig.conclude(
        accounts,
        Figure("rejected by the workers", sum(visit.rejected for visit in visits)),
        Figure("not rejected", sum(len(visit.not_rejected) for visit in visits), most=0),
        Figure("denied by the secured broker", secured.denied),
        Figure("let through", len(secured.passed), most=0),
        Figure("leaks", secured.leaks, most=0),
        Figure("connections of the good vehicle lost", sum(visit.has_lost_connection for visit in visits), most=0),
        Figure("names shared", sum(visit.shares_name for visit in visits), most=0),
        Figure("sent and not answered", sum(row["outcome"] != Outcome.ANSWERED for row in sent), most=0),
        Figure("sent twice", accounts.retried),
        Figure("answers ignored", accounts.ignored.total()),
        broken=(
            *(f"no worker rejected {what}" for visit in visits for what in visit.not_rejected),
            *(f"the secured broker let {what} through" for what in secured.passed),
        ),
    )


def _visit(rig: Rig, kind: str, broker: Broker, certs: Path | None) -> Visit:
    rig.say(f"an {kind} broker")
    flags = ("--certs", str(certs)) if certs else ()
    for worker in (_WORKER, _OTHER_WORKER):  # Two workers, so that a silent one is not the only one.
        rig.worker(broker.url, worker, certs=certs)
    good = rig.vehicle(broker.url, f"{kind}/{_GOOD}", pictures=800, rate_hz=_RATE_HZ, flags=flags)
    rig.wait_for_frames([good], _MORE)
    held = established(good.pid)
    with Intruder(broker.url, _INTRUDER, certs) as intruder:
        for topic_filter in _EVERYTHING:
            intruder.listen(topic_filter)
        for attempt in _REFUSED:
            intruder.publish(attempt)
        with suppress(RigError):  # Attempts that are not rejected are reported by name below.
            rig.wait(lambda: len(_rejected(intruder)) >= len(_REFUSED), "every attempt to be rejected", limit_s=10)
        if certs:  # Joins the workers' group; an open broker cannot prevent it from reading its share of frames.
            intruder.listen(topics.shared(topics.GROUP, topics.FRAMES.filter(model=MODEL)))
        tries = {attempt.what: intruder.publish(attempt) for attempt in (_DENIED if certs else _ON_OPEN)}
        for role, name in (("vehicle", _GOOD), ("worker", _WORKER)):
            Intruder(broker.url, _INTRUDER, certs, client_id=f"skylane-{role}-{name}").close()
        shares_name = _runs_again(rig, f"{kind}/again/{_GOOD}", broker, flags)
        rig.wait_for_frames([good], _MORE)
    has_lost_connection = bool(held - established(good.pid))
    good.end()
    rejected = _rejected(intruder)
    return Visit(
        good,
        rejected=len(rejected),
        not_rejected=tuple(each.what for each in _REFUSED if str(each.frame_id) not in rejected),
        denied=sum(not ack.accepted for ack in tries.values()),
        passed=tuple(what for what, ack in tries.items() if ack.accepted) if certs else (),
        leaks=sum(not _is_for_intruder(delivery.topic) for delivery in intruder.received),
        has_lost_connection=has_lost_connection,
        shares_name=shares_name,
    )


def _rejected(intruder: Intruder) -> set[str]:
    """Returns the intruder's frames that a worker rejected."""
    own = MASKS.of(vehicle=_INTRUDER, camera=CAMERA)
    answers = [unpack_result(delivery.payload) for delivery in list(intruder.received) if delivery.topic == own]
    return {str(answer.id) for answer in answers if answer.status is Status.REJECTED}


def _is_for_intruder(topic: str) -> bool:
    """Returns whether a vehicle with the intruder's name may read a topic."""
    mask = MASKS.names_in(topic)
    is_for_all = any(kind.names_in(topic) is not None for kind in (WORKER_STATUS, LOADS))
    return is_for_all or (mask is not None and mask["vehicle"] == _INTRUDER)


def _runs_again(rig: Rig, name: str, broker: Broker, flags: tuple[str, ...]) -> bool:
    """Returns whether a second process can run with the name of a running vehicle; it must end with the reason."""
    try:
        again = rig.vehicle(broker.url, name, pictures=100, flags=flags)
    except VehicleError:  # The vehicle ended before it was ready.
        pass
    else:
        again.wait()
    said = (rig.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    return "is already running" not in " ".join(said.split())


def _certificates(folder: Path) -> Path:
    """Creates the certificates of all nodes with the user's command.

    Raises:
        RigError: the command failed; the text has its output.
    """
    command = [sys.executable, "-m", "skylane", "broker", "certs", str(folder), "--broker", LOOPBACK]
    command += ["--vehicle", _GOOD, "--vehicle", _INTRUDER, "--worker", _WORKER, "--worker", _OTHER_WORKER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RigError(f"'skylane broker certs' failed: {done.stderr.strip()}")
    return folder
