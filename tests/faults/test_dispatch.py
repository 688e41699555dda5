"""Faults of workers under dispatch by load: one that lies about its load, one that freezes, one that dies."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from analysis.logs.frame_accounting import recovery_ms
from analysis.statistics.samples import jain, spread
from shared import clock
from shared.messages.frame import pack_result, unpack_result
from shared.messages.load import LoadReport, WorkerLoad, pack_load, unpack_load
from shared.messages.topics import LOADS, MASKS
from shared.runlog.latency_log import Outcome
from tests.support.faults.finding import Figure
from tests.support.faults.mqtt_proxy import MqttProxy, Packet
from tests.support.faults.rig import Rig, freeze, kill, resume

_S = 1e9
_WORKERS = 4  # One of them has the fault.
_THINK_MS = 40.0
_SLOW_MS = 500.0
_RATE_HZ = 25.0  # Of each of two vehicles: two thirds of what three workers can answer.
_FLAGS = ("--loop", "--window", "8", "--dispatch", "load")
_CLAIM = WorkerLoad(queue=0, free=64, wait_ms=0.0, answer_ms=5.0, spacing_ms=5.0)
_LEARN_S = 3.0  # Time for which a liar may get more than its share.
_MOST_SHARE = 10.0  # Percentage of the frames that a liar may get afterwards; an equal share is 25.
_WATCH_S = 12.0
_NO_NEW_FRAMES_S = 6.0  # Reports older than 5 s count for nothing.
_BALANCE_S = 1.0
_FAULTY = "worker-1"
_SPEED_SHARE = 100 / (1 + (_WORKERS - 1) * _SLOW_MS / _THINK_MS)  # Percentage of all frames that a liar can answer.


class FalseLoad:
    """Replaces the load in the load reports and replies of a worker by the same claim."""

    def __init__(self, claim: WorkerLoad) -> None:
        self._claim = claim
        self.replaced = 0  # Number of false loads that were sent.

    def __call__(self, packet: Packet) -> Sequence[Packet]:
        """Returns the packet to forward."""
        if LOADS.names_in(packet.topic) and packet.payload:
            report = unpack_load(packet.payload)
            false = pack_load(LoadReport(report.session, dict.fromkeys(report.models, self._claim)))
        elif MASKS.names_in(packet.topic):
            false = pack_result(replace(unpack_result(packet.payload), load=self._claim))
        else:
            return (packet,)
        self.replaced += 1
        return (packet.with_payload(false),)


@pytest.mark.faults(
    27,
    f"a worker of {_SLOW_MS:g} ms claims to be idle and to answer in {_CLAIM.answer_ms:g} ms, beside three of {_THINK_MS:g} ms",
    f"after {_LEARN_S:g} s it gets at most {_MOST_SHARE:g} % of the frames, and none is lost",
)
def test_lying_worker(rig: Rig) -> None:
    """A proxy replaces the load in the reports and replies of one worker; two vehicles dispatch by load."""
    broker = rig.broker()
    false_load = FalseLoad(_CLAIM)
    proxy = rig.enter(MqttProxy((broker.listener.host, broker.listener.port)))
    proxy.to_broker = false_load
    rig.worker(proxy.url, _FAULTY, think_ms=_SLOW_MS)
    _start(rig, broker.url, answering=_WORKERS - 1)  # Others may answer all frames of the liar before it does.
    learned_ns = clock.now_ns() + _LEARN_S * _S
    time.sleep(_LEARN_S + _WATCH_S)
    accounts = rig.end_vehicles()
    rig.conclude(
        accounts,
        Figure("false loads", false_load.replaced),
        Figure("its share before", _share(rig, 0, learned_ns), "%"),
        Figure(f"its share after {_LEARN_S:g} s", _share(rig, learned_ns), "%", most=_MOST_SHARE),
        Figure("share of its speed", _SPEED_SHARE, "%"),
        _unanswered(rig),
        broken=() if false_load.replaced else ("no load was replaced: the fault did not happen",),
    )


@pytest.mark.faults(
    28,
    f"SIGSTOP one of {_WORKERS} workers for {_WATCH_S:g} s while vehicles dispatch by load",
    f"no new frame is sent to it after {_NO_NEW_FRAMES_S:g} s, and others answer those that it holds",
)
def test_frozen_worker_by_load(rig: Rig) -> None:
    """Freezes a worker that holds frames. Its status stays online, and its last report may say that it is free."""
    broker = rig.broker()
    victim = rig.worker(broker.url, _FAULTY, think_ms=_THINK_MS)
    _start(rig, broker.url)
    frozen_ns = clock.now_ns()
    freeze(victim.pid)
    time.sleep(_WATCH_S)
    resumed_ns = clock.now_ns()
    resume(victim.pid)
    rig.wait(lambda: _sent_to_faulty(rig, resumed_ns), "a frame for the worker after it continued")
    accounts = rig.end_vehicles()
    sent = _sent_to_faulty(rig, frozen_ns, resumed_ns)
    rig.conclude(
        accounts,
        Figure("frames sent to it while it stood still", len(sent)),
        Figure("last of them after", (max(sent) - frozen_ns) / _S if sent else 0, "s", most=_NO_NEW_FRAMES_S),
        Figure("recovery p95", spread(recovery_ms(rig.rows(), [frozen_ns]))["p95"], "ms", most=3000),
        _unanswered(rig),
        Figure("late answers counted, not taken", accounts.ignored["duplicate"] + accounts.ignored["late_or_repeated"]),
        broken=() if accounts.retried else ("the worker held no frame when it was frozen: the fault did not happen",),
    )


@pytest.mark.faults(
    29,
    f"kill -9 one of {_WORKERS} busy workers while vehicles dispatch by load",
    f"no frame is lost, and within {_BALANCE_S:g} s the others share all frames equally",
)
def test_killed_worker_by_load(rig: Rig) -> None:
    """Kills a worker while frames arrive at two thirds of what the others can answer."""
    broker = rig.broker()
    victim = rig.worker(broker.url, _FAULTY, think_ms=_THINK_MS)
    _start(rig, broker.url)
    killed_ns = clock.now_ns()
    kill(victim.pid)
    time.sleep(_WATCH_S)
    accounts = rig.end_vehicles()
    sent = _sent_to_faulty(rig, killed_ns)
    balanced = (row for row in rig.rows(Outcome.ANSWERED) if _first_sent_ns(row) > killed_ns + _BALANCE_S * _S)
    shares = Counter(row["worker"] for row in balanced)
    others = [shares[f"worker-{number}"] for number in range(2, _WORKERS + 1)]
    rig.conclude(
        accounts,
        Figure("frames sent again", accounts.retried),
        _unanswered(rig),
        Figure("recovery p95", spread(recovery_ms(rig.rows(), [killed_ns]))["p95"], "ms"),
        Figure("last frame sent to it after", (max(sent) - killed_ns) / _S if sent else 0, "s", most=_BALANCE_S),
        Figure(f"unequal shares of the others after {_BALANCE_S:g} s", 100 * (1 - jain(others)), "%", most=5),
    )


def _start(rig: Rig, url: str, answering: int = _WORKERS) -> None:
    """Starts the other workers and two vehicles, and waits until so many workers have answered."""
    for number in range(2, _WORKERS + 1):
        rig.worker(url, f"worker-{number}", think_ms=_THINK_MS)
    for number in (1, 2):
        rig.vehicle(url, f"vehicle-{number}", rate_hz=_RATE_HZ, flags=_FLAGS)
    rig.wait(lambda: len(_answering(rig)) >= answering, "answers of the workers")
    rig.wait_for_frames(rig.vehicles, 20)


def _answering(rig: Rig) -> set[str]:
    return {row["worker"] for row in rig.rows(Outcome.ANSWERED)}


def _first_sent_ns(row: Mapping[str, str]) -> float:
    """Returns when a frame was sent for the first time."""
    return int(row["t_sent_ns"]) - float(row["retry_wait_ms"] or 0) * 1e6


def _share(rig: Rig, since_ns: float, until_ns: float = float("inf")) -> float | None:
    """Returns the percentage of frames that were first sent to the worker with the fault; None if there are none."""
    sent = sum(bool(row["t_sent_ns"]) and since_ns <= _first_sent_ns(row) < until_ns for row in rig.rows())
    return 100 * len(_sent_to_faulty(rig, since_ns, until_ns)) / sent if sent else None


def _sent_to_faulty(rig: Rig, since_ns: float, until_ns: float = float("inf")) -> list[float]:
    """Returns when frames were first sent to the worker with the fault: it answered them, or another one the second attempt."""
    rows = [row for row in rig.rows() if row["worker"] == _FAULTY or float(row["retry_wait_ms"] or 0)]
    return [sent_ns for sent_ns in map(_first_sent_ns, rows) if since_ns <= sent_ns < until_ns]


def _unanswered(rig: Rig) -> Figure:
    """Returns how many frames were sent and not answered."""
    unanswered = sum(bool(row["t_sent_ns"]) and row["outcome"] != Outcome.ANSWERED for row in rig.rows())
    return Figure("frames sent and not answered", unanswered, most=0)
