"""Link faults: half-open connections, links that go up and down, the lowest promised bandwidth, loss and delay, an outage."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import pytest

from analysis.statistics.samples import spread
from ops.broker.broker import Broker
from ops.processes.vehicle_process import VehicleProcess
from shared import clock
from shared.mqtt.paho_client import KEEPALIVE_S
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import Outcome
from shared.runlog.presented_log import OutputOrigin
from tests.support.faults.connections import established, reconnects
from tests.support.faults.finding import Figure
from tests.support.faults.hostile.trigger_pixels import MODEL as LOCAL_MODEL
from tests.support.faults.models import make_local_model
from tests.support.faults.namespaces import Namespace, namespace, namespace_broker, namespace_remarks
from tests.support.faults.presented import PresentedTicks, panning_pictures, stages, taken, write_fusion_file
from tests.support.faults.rig import Rig, UnavailableError

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

_OUTAGE_S = 10.0
_OUTAGE_THINK_MS = 10.0  # The worker has time for all vehicles.
_FAR = LinkSpec(delay_ms=50)  # A result is one or two ticks old.
_TICK_HZ = 10.0
_SCENE_TICKS = 120  # Time until the scene moves back.
_MAX_AGE_MS = 2000.0
_MOST_LEFT_OUT = 5.0  # Maximum percentage of ticks that the presenter cannot take on a busy machine.
_MOST_WRONG = 10.0  # Maximum percentage of wrong pixels of half of the moved masks; of held ones it is over 50.
_DECAY: dict[str, list[str]] = {  # The outputs of each presenter in an outage, in this order.
    "hold": [OutputOrigin.REMOTE, "too_old"],
    "warp": [OutputOrigin.WARPED, "too_old"],
    "fuse": [OutputOrigin.FUSED, OutputOrigin.LOCAL],
}


@pytest.mark.faults(
    8,
    "links that swallow all for 35 s: of a busy vehicle, of an idle one, of a worker",
    "noticed within two keepalives; all go on afterwards",
)
def test_half_open(rig: Rig) -> None:
    """Lets the links of a busy vehicle, an idle vehicle and a worker drop everything for 35 s without closing."""
    space = namespace(rig)
    broker = namespace_broker(rig, space)
    links = {name: rig.link(broker) for name in ("worker-1", "busy", "idle")}
    worker = rig.worker(links["worker-1"].url, "worker-1")
    rig.worker(broker.url, "worker-2")
    near = rig.vehicle(broker.url, "near", pictures=800, rate_hz=10)
    busy = rig.vehicle(links["busy"].url, "busy", pictures=800, rate_hz=10)
    idle = rig.vehicle(links["idle"].url, "idle", pictures=100, flags=("--loop",), waits_for_go=True)
    watched = {"worker": worker.pid, "busy": busy.pid, "idle": idle.pid}
    if space:
        watched["air"] = rig.vehicle(broker.url, "air", pictures=800, rate_hz=10, wrapper=space.wrapper).pid
    rig.wait_for_frames([vehicle for vehicle in rig.vehicles if vehicle is not idle], _AGAIN)
    for link in links.values():
        link.set(_DARK)
    if space:
        space.radio.spec = _DARK
    rig.say("all is dark")
    noticed_s = _closed_after(rig, watched)
    for link in links.values():
        link.set(LinkSpec())
    if space:
        space.radio.spec = LinkSpec()
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
    rig.conclude(accounts, *figures, remarks=namespace_remarks(space))


@pytest.mark.faults(
    9,
    "a link goes down and up every 5 s for a minute, its connections broken or kept",
    "answers come whenever it is up",
)
def test_flapping(rig: Rig) -> None:
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
    rig.conclude(accounts, *figures, remarks=namespace_remarks(space))


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


@pytest.mark.faults(
    10,
    f"links of {_MBPS:g} Mbit/s, the least that was promised, and a window full of the largest frames",
    "frames complete or expire, no reconnect; a larger one is refused at the vehicle",
)
def test_least_bandwidth(rig: Rig) -> None:
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
    rig.conclude(
        accounts,
        Figure("largest frame", max(int(row["bytes_up"]) for row in rows) / 1e6, "MB"),
        Figure("longest journey", max(took_s, default=None), "s", most=_ANSWER_S),
        Figure("frames without a deadline given up", len(given_up), most=0),
        Figure("reconnects", _reconnects(rig, log), most=0),
        remarks=remarks,
        broken=() if too_large == len(rig.vehicles) else (f"{too_large} frames refused as too large, not one each",),
    )


@pytest.mark.faults(
    11,
    "2, 5 and 10 % of packets lost, 50 and 300 ms there and back",
    "frames are answered or expire, no reconnect",
)
def test_lossy_links(rig: Rig) -> None:
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
    rig.conclude(accounts, *figures, remarks=namespace_remarks(spaces[0]))


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
    spec, url = LinkSpec(delay_ms=round_trip_s / 2 * 1e3, loss_percent=100 * loss), broker.url
    if space:
        space.radio.spec = spec
    else:
        url = rig.link(broker, spec).url
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


@pytest.mark.faults(
    30,
    f"the links of vehicles that hold, warp and fuse results are cut for {_OUTAGE_S:g} s, their connections broken or kept",
    "moved results, then the local model's, at every tick; afterwards no stale frame is sent or presented",
)
def test_outage(rig: Rig) -> None:
    """Cuts the links of vehicles with each presenter; one more vehicle keeps its connection over a radio link."""
    models = make_local_model(rig)
    fusion = write_fusion_file(rig, models, LOCAL_MODEL)
    space = namespace(rig)
    broker = namespace_broker(rig, space)
    rig.worker(broker.url, think_ms=_OUTAGE_THINK_MS)
    link = rig.link(broker, _FAR)
    source = panning_pictures(rig, _SCENE_TICKS)
    for kind in _DECAY:
        rig.vehicle(link.url, kind, source=source, rate_hz=_TICK_HZ, flags=_presenting(kind, models, fusion))
    if space:
        flags = _presenting("fuse", models, fusion)
        rig.vehicle(broker.url, "kept", source=source, rate_hz=_TICK_HZ, flags=flags, wrapper=space.wrapper)
    rig.wait_for_frames(rig.vehicles, _AGAIN, Outcome.ANSWERED)
    began_ns = clock.now_ns()
    rig.say("no link")
    link.set(LinkSpec(reset_after_s=0))
    if space:
        space.cut()
    time.sleep(_OUTAGE_S)
    back_ns = clock.now_ns()
    link.set(_FAR)
    if space:
        space.mend()
    rig.say("the link is back")
    rig.wait_for_frames(rig.vehicles, _AGAIN, Outcome.ANSWERED)
    accounts = rig.end_vehicles()
    figures: list[Figure] = []
    broken = []
    for vehicle in rig.vehicles:
        ticks = PresentedTicks(vehicle)
        figures += _outage_figures(vehicle, ticks, began_ns, back_ns)
        seen, expected = stages(ticks.due(began_ns, back_ns)), _DECAY.get(vehicle.name, _DECAY["fuse"])
        if seen != expected:
            broken.append(f"{vehicle.name} presented {', '.join(seen)} instead of {', '.join(expected)}")
    rig.conclude(accounts, *figures, remarks=namespace_remarks(space), broken=broken)


def _presenting(kind: str, models: Path, fusion: Path) -> list[str]:
    """Returns the flags of a vehicle that presents results."""
    flags = ["--loop", "--deadline-ms", f"{_DEADLINE_MS:g}"]
    flags += ["--present", kind, "--present-max-age-ms", f"{_MAX_AGE_MS:g}"]
    if kind == "fuse":
        flags += ["--local-model", LOCAL_MODEL, "--models", str(models), "--fusion", str(fusion)]
    return flags


def _outage_figures(vehicle: VehicleProcess, ticks: PresentedTicks, began_ns: int, back_ns: int) -> Iterator[Figure]:
    """Yields the figures of a vehicle whose link was cut from the first time to the second."""
    name, meanwhile, after = vehicle.name, ticks.due(began_ns, back_ns), ticks.due(back_ns)
    results = [row for row in after if row.source_sequence is not None]
    yield Figure(f"{name}: ticks in the outage", len(meanwhile))
    if name in ("fuse", "kept"):
        without = sum(row.origin is OutputOrigin.NONE for row in taken(meanwhile))
        yield Figure(f"{name}: of these without an output", without, most=0)
    yield Figure(f"{name}: ticks unaccounted", ticks.unaccounted, most=0)
    yield Figure(f"{name}: ticks left out", 100 * ticks.left_out / len(ticks.rows), "%", most=_MOST_LEFT_OUT)
    yield Figure(f"{name}: oldest result", max(row.age_ns or 0 for row in ticks.rows) / 1e6, "ms", most=_MAX_AGE_MS)
    stale_sent = sum(_age_sent_ns(row) > _DEADLINE_MS * 1e6 for row in _sent_since(vehicle, back_ns))
    yield Figure(f"{name}: stale frames sent afterwards", stale_sent, most=0)
    stale = sum((row.age_ns or 0) > _DEADLINE_MS * 1e6 for row in results)
    yield Figure(f"{name}: stale results presented afterwards", stale, most=0)
    first_s = (min(row.due_ns or 0 for row in results) - back_ns) / 1e9 if results else None
    yield Figure(f"{name}: first result afterwards", first_s, "s", most=_OUTAGE_S)
    yield Figure(f"{name}: wrong masks presented", ticks.wrong_masks, most=0)
    for origin, shares in ticks.wrong_pixels().items():
        most = _MOST_WRONG if origin in (OutputOrigin.WARPED, OutputOrigin.FUSED) else None
        yield Figure(f"{name}: wrong pixels, {origin.value}", 100 * median(shares), "%", most=most)


def _sent_since(vehicle: VehicleProcess, since_ns: int) -> list[dict[str, str]]:
    return [row for row in vehicle.rows() if int(row["t_sent_ns"] or 0) > since_ns]


def _age_sent_ns(row: Mapping[str, str]) -> int:
    return int(row["t_sent_ns"]) - int(row["t_due_ns"])
