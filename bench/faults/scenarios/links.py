"""Link faults: half-open connections, links that go up and down, the lowest promised bandwidth, loss and delay."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.faults.rig.connections import established, reconnects
from bench.faults.rig.namespaces import Namespace, namespace, namespace_broker, namespace_remarks
from bench.faults.rig.radio import Air
from bench.faults.rig.rig import Rig
from bench.faults.scenario import Figure, Finding, UnavailableError, scenario
from bench.harness.samples import spread
from bench.link.link import LinkSpec
from bench.load.vehicle_process import VehicleProcess
from shared import clock
from shared.broker.broker import Broker
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

_MBPS = 2.0
_LARGEST_BYTES = round(0.8 * KEEPALIVE_S * _MBPS * 1e6 / 8)  # Largest message on such a link.
_ENVELOPE_BYTES = 4096  # More than a message needs in addition to its pixels.
_WIDTH = 1000
_HEIGHT = (_LARGEST_BYTES - _ENVELOPE_BYTES) // (3 * _WIDTH)
_LARGER = 2  # Factor of the height: such a frame takes longer than any broker's keepalive on this link.
_ANSWER_S = 120.0  # Longer than a full window takes.
_LARGEST_FRAMES = 4  # Equal to the window, so that all wait at once.
_LOSSES = (0.02, 0.05, 0.10)
_ROUND_TRIPS_S = (0.05, 0.3)
_LOSSY_FRAMES, _LOSSY_HZ, _DEADLINE_MS = 60, 5.0, 1000
_MOST_LATE = 50.0  # Maximum percentage of late frames on a link with a loss of at most _JUDGED_LOSS.
_JUDGED_LOSS = 0.05  # With more loss, TCP alone can exceed the deadline.


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


@scenario(
    10,
    "least-bandwidth",
    f"links of {_MBPS:g} Mbit/s, the least that was promised, and a window full of the largest frames",
    "frames complete or expire, no reconnect; a larger one is refused at the vehicle",
)
def narrow(rig: Rig) -> Finding:
    """Sends a window of the largest frames, and a larger one, over links with exactly the lowest bandwidth."""
    log = rig.folder / "broker.log"
    space, remarks = _narrow_namespace(rig)
    broker = namespace_broker(rig, space, log=log)
    rig.worker(broker.url, height=_HEIGHT, width=_WIDTH)
    source = rig.pictures(_LARGEST_FRAMES, _HEIGHT, _WIDTH)
    for picture in rig.pictures(1, _LARGER * _HEIGHT, _WIDTH).iterdir():
        (source / f"larger-{picture.name}").write_bytes(picture.read_bytes())
    link = rig.link(broker, LinkSpec(bandwidth_mbps=_MBPS))
    flags = ("--min-bandwidth", f"{_MBPS:g}", "--resize-at", "cloud", "--resize", "stretch")
    rig.vehicle(link.url, "deadline", source=source, flags=(*flags, "--deadline-ms", "20000"))
    if space:
        patient = (*flags, "--answer-timeout", f"{_ANSWER_S:g}")
        rig.vehicle(broker.url, "patient", source=source, wrapper=space.wrapper, flags=patient)
    for vehicle in rig.vehicles:
        vehicle.wait(limit_s=180)
    accounts, rows = rig.end_vehicles(), rig.rows()
    took_s = [float(row["total_ms"]) / 1e3 for row in rig.rows(Outcome.ANSWERED)]
    given_up = [row for vehicle in rig.vehicles[1:] for row in vehicle.rows(Outcome.LOST)]
    too_large = sum(row["reason"].startswith("too_large") for row in rows)
    return Finding(
        accounts,
        Figure("largest frame", max(int(row["bytes_up"]) for row in rows) / 1e6, "MB"),
        Figure("longest journey", max(took_s, default=None), "s", most=_ANSWER_S),
        Figure("frames without a deadline given up", len(given_up), most=0),
        Figure("reconnects", _reconnects(rig, log), most=0),
        remarks=remarks,
        broken=() if too_large == len(rig.vehicles) else (f"{too_large} frames refused as too large, not one each",),
    )


@scenario(
    11,
    "lossy-links",
    "2, 5 and 10 % of packets lost, 50 and 300 ms there and back",
    "frames are answered or expire, no reconnect",
)
def lossy(rig: Rig) -> Finding:
    """Runs one vehicle for each of 2, 5 and 10 % packet loss and 50 and 300 ms round trip, all at once."""
    log = rig.folder / "broker.log"
    cells = [(loss, round_trip_s) for loss in _LOSSES for round_trip_s in _ROUND_TRIPS_S]
    spaces = [namespace(rig) for _ in cells]
    broker = namespace_broker(rig, spaces[0], log=log)
    rig.worker(broker.url)
    for space, (loss, round_trip_s) in zip(spaces, cells, strict=True):
        _lossy_vehicle(rig, broker, space, loss, round_trip_s)
    for vehicle in rig.vehicles:
        vehicle.go()
    for vehicle in rig.vehicles:
        vehicle.wait()
    accounts = rig.end_vehicles()
    figures = [figure for vehicle, cell in zip(rig.vehicles, cells, strict=True) for figure in _cell(vehicle, *cell)]
    figures.append(Figure("reconnects", _reconnects(rig, log), most=0))
    return Finding(accounts, *figures, remarks=namespace_remarks(spaces[0]))


def _narrow_namespace(rig: Rig) -> tuple[Namespace | None, tuple[str, ...]]:
    """Creates a network namespace with the lowest bandwidth; returns None and the reason if that is not possible."""
    space = namespace(rig)
    try:
        if space is not None:
            space.narrow(_MBPS)
    except UnavailableError as error:
        return None, (f"only over the fault proxy: {error}",)
    return space, namespace_remarks(space)


def _lossy_vehicle(rig: Rig, broker: Broker, space: Namespace | None, loss: float, round_trip_s: float) -> None:
    """Starts a vehicle behind its own link; it waits for `go()`."""
    if space:
        space.radio.air = Air(round_trip_s / 2, loss)
        url = broker.url
    else:
        url = rig.link(broker, LinkSpec(delay_ms=round_trip_s / 2 * 1e3, loss_percent=100 * loss)).url
    rig.vehicle(
        url,
        f"loss-{100 * loss:.0f}-{1e3 * round_trip_s:.0f}ms",
        pictures=_LOSSY_FRAMES,
        rate_hz=_LOSSY_HZ,
        flags=("--deadline-ms", str(_DEADLINE_MS)),
        wrapper=space.wrapper if space else (),
        waits_for_go=True,
    )


def _cell(vehicle: VehicleProcess, loss: float, round_trip_s: float) -> Iterator[Figure]:
    """Yields the figures of one combination of loss and round trip."""
    title = f"{loss:.0%} of {1e3 * round_trip_s:.0f} ms:"
    took_ms = [float(row["total_ms"]) for row in vehicle.rows(Outcome.ANSWERED)]
    yield Figure(f"{title} p50", spread(took_ms)["median"], "ms", most=_DEADLINE_MS)
    yield Figure(f"{title} p99", spread(took_ms)["p99"], "ms")
    most = _MOST_LATE if loss <= _JUDGED_LOSS else None
    yield Figure(f"{title} not answered in time", 100 * (1 - len(took_ms) / len(vehicle.rows())), "%", most=most)


def _reconnects(rig: Rig, log: Path) -> int:
    return sum(reconnects(log, f"skylane-vehicle-{vehicle.name}") for vehicle in rig.vehicles)
