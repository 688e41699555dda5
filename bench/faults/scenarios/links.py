"""Link faults: half-open connections, and links that go up and down."""

import time
from collections.abc import Mapping

from bench.faults.rig.connections import established
from bench.faults.rig.namespaces import namespace, namespace_broker, namespace_remarks
from bench.faults.rig.radio import Air
from bench.faults.rig.rig import Rig
from bench.faults.scenario import Figure, Finding, scenario
from bench.link.link import LinkSpec
from bench.load.vehicle_process import VehicleProcess
from shared import clock
from shared.mqtt.settings import KEEPALIVE_S
from shared.runlog.latency_log import Outcome

_DARK = LinkSpec(half_open_after_s=0)
_DARK_S = 35.0
# A node with messages in flight notices missing acknowledgements; others notice only missing ping replies.
_KEEPALIVES = {"worker": 2.0, "idle": 2.0, "busy": 1.5, "air": 1.5}
_AGAIN = 20  # Number of answers that show that a vehicle continues.
_FLAPS = 6
_FLAP_S = 5.0
_RATE_HZ = 20.0


@scenario(
    8,
    "half-open",
    "links that swallow all for 35 s: of a busy vehicle, of an idle one, of a worker",
    "noticed within two keepalives; all go on afterwards",
)
def half_open(rig: Rig) -> Finding:
    """Lets the links of a busy vehicle, an idle vehicle and a worker drop everything for 35 s without closing."""
    space = namespace(rig)
    broker = namespace_broker(rig, space)
    links = {name: rig.link(broker) for name in ("worker-1", "busy", "idle")}
    worker = rig.worker(links["worker-1"].url, "worker-1")
    rig.worker(broker.url, "worker-2")
    near = rig.vehicle(broker.url, "near", pictures=800, rate_hz=10)
    busy = rig.vehicle(links["busy"].url, "busy", pictures=800, rate_hz=10)
    idle = rig.vehicle(links["idle"].url, "idle", pictures=100, waits_for_go=True)
    watched = {"worker": worker.pid, "busy": busy.pid, "idle": idle.pid}
    if space:
        watched["air"] = rig.vehicle(broker.url, "air", pictures=800, rate_hz=10, wrapper=space.wrapper).pid
    rig.wait_for_frames([vehicle for vehicle in rig.vehicles if vehicle is not idle], _AGAIN)
    for link in links.values():
        link.set(_DARK)
    if space:
        space.radio.air = Air(is_dark=True)
    rig.say("all is dark")
    noticed_s = _closed_after(rig, watched)
    for link in links.values():
        link.set(LinkSpec())
    if space:
        space.radio.air = Air()
    light_ns = clock.now_ns()
    idle.go()
    rig.say("there is light again")
    rig.wait(lambda: all(_answers(each, light_ns) >= _AGAIN for each in rig.vehicles), "all vehicles go on")
    rig.wait(lambda: _answers(near, light_ns, "worker-1"), "the worker goes on")
    accounts = rig.end_vehicles()
    lost = sum(row["outcome"] != Outcome.ANSWERED and row["attempts"] != "0" for row in near.rows())
    notices = [
        Figure(f"{name} notices", noticed_s.get(name), "s", most=_KEEPALIVES[name] * KEEPALIVE_S) for name in watched
    ]
    figures = (*notices, Figure("sent over a good link and not answered", lost, most=0))
    return Finding(accounts, *figures, remarks=namespace_remarks(space))


@scenario(
    9,
    "flapping",
    "a link goes down and up every 5 s for a minute, its connections broken or kept",
    "answers come whenever it is up",
)
def flapping(rig: Rig) -> Finding:
    """Switches links on and off every 5 s for a minute, with broken and with kept connections."""
    space = namespace(rig)
    broker = namespace_broker(rig, space)
    rig.worker(broker.url)
    link = rig.link(broker)
    pictures = round(_RATE_HZ * (2 * _FLAPS + 1) * _FLAP_S)
    flags = ("--deadline-ms", "2000")
    rig.vehicle(link.url, "broken", pictures=pictures, rate_hz=_RATE_HZ, flags=flags)
    if space:
        rig.vehicle(broker.url, "kept", pictures=pictures, rate_hz=_RATE_HZ, flags=flags, wrapper=space.wrapper)
    rig.wait_for_frames(rig.vehicles, _AGAIN)
    ups = []
    for _ in range(_FLAPS):
        link.set(LinkSpec(reset_after_s=0))
        if space:
            space.cut()
        time.sleep(_FLAP_S)
        link.set(LinkSpec())
        if space:
            space.mend()
        began_ns = clock.now_ns()
        time.sleep(_FLAP_S)
        ups.append((began_ns, clock.now_ns()))
    accounts = rig.end_vehicles()
    figures = []
    for vehicle in rig.vehicles:
        answered_ns = [int(row["t_mask_decoded_ns"]) for row in vehicle.rows(Outcome.ANSWERED)]
        counts = [sum(began_ns <= at_ns < ended_ns for at_ns in answered_ns) for began_ns, ended_ns in ups]
        figures += [
            Figure(f"goodput of a {vehicle.name} link while up", sum(counts) / len(ups) / _FLAP_S, "/s"),
            Figure(f"times a {vehicle.name} link was up without an answer", counts.count(0), most=0),
        ]
    return Finding(accounts, *figures, remarks=namespace_remarks(space))


def _closed_after(rig: Rig, pids: Mapping[str, int]) -> dict[str, float]:
    """Watches processes during the outage; returns the seconds after which each closed its connection."""
    held = {name: established(pid) for name, pid in pids.items()}
    began_s = time.monotonic()
    after_s: dict[str, float] = {}

    def is_over() -> bool:
        for name, pid in pids.items():
            if name not in after_s and held[name] - established(pid):
                after_s[name] = time.monotonic() - began_s
        return time.monotonic() - began_s > _DARK_S

    rig.wait(is_over, "35 s of darkness", limit_s=2 * _DARK_S)
    return after_s


def _answers(vehicle: VehicleProcess, since_ns: int, worker: str = "") -> int:
    """Counts the answered frames that were sent after `since_ns`, by one worker or all."""
    answered = vehicle.rows(Outcome.ANSWERED)
    return sum(int(row["t_sent_ns"]) > since_ns and row["worker"].startswith(worker) for row in answered)
