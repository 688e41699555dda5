"""The pipeline over two Mosquittos: vehicles on one of them, workers on the other one or on both."""

import re
from collections import Counter
from pathlib import Path

import pytest

from ops.broker.certificate_authority import CertificateAuthority, Role
from shared import clock
from shared.messages import topics
from shared.package_data import shipped
from shared.runlog.latency_log import Outcome
from tests.brokers.bridged_brokers import CONTROL, BridgedBrokers, secured_pair
from tests.pipeline.rig import skylane
from tests.support.faults.rig import MODEL, Rig, kill

pytestmark = pytest.mark.mosquitto
COUNT = 100
AHEAD_S = 3.0  # Lead of the clock of the worker.
THINK_MS = 20.0


def test_workers_on_the_other_broker_answer_every_frame(rig: Rig, tmp_path: Path) -> None:
    """All frames and masks cross the bridge, and so do status, clock probes and the workers' loads."""
    brokers = BridgedBrokers(rig, tmp_path)
    for number in (1, 2):
        rig.worker(brokers.there.url, f"worker-{number}", think_ms=THINK_MS, clock_offset_s=AHEAD_S)
    vehicles = [rig.vehicle(brokers.here.url, f"car-{number}", pictures=COUNT) for number in (1, 2)]
    assert [vehicle.wait() for vehicle in vehicles] == [0, 0]
    accounts = rig.accounts(*vehicles)
    assert not accounts.failures
    assert accounts.outcomes == {Outcome.ANSWERED: 2 * COUNT}
    assert accounts.masks_checked == 2 * COUNT
    assert accounts.ignored.total() <= accounts.retried
    rows = rig.rows()
    assert {row["worker"] for row in rows} == {"worker-1", "worker-2"}
    for row in rows:
        assert abs(float(row["clock_offset_ms"]) - 1e3 * AHEAD_S) <= float(row["clock_error_ms"])


def test_a_killed_worker_on_the_other_broker_is_reported_across_the_bridge(rig: Rig, tmp_path: Path) -> None:
    """Its last will crosses the bridge, and the other worker gets its frames; an operator reaches that one, too."""
    brokers = BridgedBrokers(rig, tmp_path, *CONTROL)
    workers = [rig.worker(brokers.there.url, f"worker-{number}", think_ms=THINK_MS) for number in (1, 2)]
    vehicle = rig.vehicle(brokers.here.url, flags=("--loop",))
    rig.wait_for_frames([vehicle], 20)
    kill(workers[0].pid)
    rig.wait_for_frames([vehicle], 40)
    flags = ("--broker", brokers.here.url, "--operator", "anna")
    assert MODEL in skylane("cloud", "control", workers[1].name, "list", *flags)
    accounts = rig.end_vehicles()
    assert not accounts.failures
    assert accounts.unanswered == 0


@pytest.mark.parametrize("dispatch", ["load", "group"])
def test_the_workers_of_both_brokers_answer_each_frame_once(rig: Rig, tmp_path: Path, dispatch: str) -> None:
    """A frame for one worker has one subscriber, and the bridge is one member of the vehicles' broker's group.

    If the frames crossed without `$share`, each of the two brokers would give every frame to a worker of its own.
    """
    brokers = BridgedBrokers(rig, tmp_path)
    workers = [
        rig.worker(url, name, think_ms=THINK_MS)
        for url, name in ((brokers.here.url, "worker-here"), (brokers.there.url, "worker-there"))
    ]
    vehicle = rig.vehicle(brokers.here.url, pictures=COUNT, flags=("--dispatch", dispatch))
    assert vehicle.wait() == 0
    accounts = rig.accounts(vehicle)
    assert not accounts.failures
    assert accounts.outcomes == {Outcome.ANSWERED: COUNT}
    assert accounts.ignored.total() <= accounts.retried  # A slow frame was sent twice; no other one was answered twice.
    answered = Counter(row["worker"] for row in rig.rows())
    assert min(answered[worker.name] for worker in workers) > 0


def test_the_workers_of_this_broker_continue_while_the_other_one_is_down(rig: Rig, tmp_path: Path) -> None:
    """Frames that the other broker held are sent again; its workers get frames once it is back."""
    brokers = BridgedBrokers(rig, tmp_path)
    for url, name in ((brokers.here.url, "worker-here"), (brokers.there.url, "worker-there")):
        rig.worker(url, name, think_ms=THINK_MS)
    vehicle = rig.vehicle(brokers.here.url, flags=("--loop",))
    rig.wait(lambda: "worker-there" in {row["worker"] for row in vehicle.rows()}, "an answer from the other broker")
    kill(brokers.there.pid)
    rig.wait_for_frames([vehicle], 50, Outcome.ANSWERED)
    brokers.restart_there()
    back_ns = clock.now_ns()

    def is_used_again() -> bool:
        rows = vehicle.rows(Outcome.ANSWERED, due_ns=(back_ns, float("inf")))
        return "worker-there" in {row["worker"] for row in rows}

    rig.wait(is_used_again, "an answer from the other broker after its return")
    accounts = rig.end_vehicles()
    assert not accounts.failures
    assert accounts.unanswered == 0


def test_two_vehicles_with_one_name_notice_each_other_across_the_bridge(rig: Rig, tmp_path: Path) -> None:
    """The status of both crosses the bridge. Without that, one would receive the masks of the other."""
    brokers = BridgedBrokers(rig, tmp_path)
    rig.worker(brokers.there.url)
    first = rig.vehicle(brokers.here.url, flags=("--loop",))
    rig.wait_for_frames([first], 10)
    with Rig(tmp_path / "second", 1) as second_rig:
        second = second_rig.vehicle(brokers.there.url, flags=("--loop",), awaits_ready=False)
        assert second.wait() == 1
        assert "is already running" in second.output
    rig.wait_for_frames([first], 10)
    assert not rig.end_vehicles().failures


def test_a_bridge_of_secured_brokers_has_a_role_of_its_own(rig: Rig, tmp_path: Path) -> None:
    """`bridge.acl` suffices for frames, masks and status; the authority signs a certificate for each node."""
    authority = CertificateAuthority(tmp_path / "certs")
    here, there = secured_pair(rig, authority, tmp_path)
    authority.node(Role.WORKER, "worker-1", 1)
    authority.node(Role.VEHICLE, "vehicle-1", 1)
    rig.worker(there.url, certs=authority.folder)
    vehicle = rig.vehicle(here.url, pictures=COUNT, flags=("--certs", str(authority.folder)))
    assert vehicle.wait() == 0
    accounts = rig.accounts(vehicle)
    assert not accounts.failures
    assert accounts.outcomes == {Outcome.ANSWERED: COUNT}


def test_the_bridge_has_a_line_for_every_topic_of_the_protocol() -> None:
    """A topic that is added to the protocol has to be bridged, or left out on purpose."""
    lines = (shipped("mosquitto") / "bridge.conf").read_text(encoding="utf-8")
    kinds = {kind.pattern.partition("/")[0] for kind in vars(topics).values() if isinstance(kind, topics.TopicKind)}
    assert (
        set(re.findall(rf"(?m)^#?topic (?:\$share/skylane/)?{topics.PREFIX}/(\w+)/\S+ (?:in|out|both) [01]$", lines))
        == kinds
    )
