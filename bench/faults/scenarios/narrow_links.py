"""Faults of links that stay up: the lowest promised bandwidth, packet loss, and delay."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.faults.rig.connections import reconnects
from bench.faults.rig.namespaces import Namespace
from bench.faults.rig.radio import Air
from bench.faults.rig.rig import Rig
from bench.faults.rig.vehicle_process import VehicleProcess
from bench.faults.scenario import Figure, Finding, Scenario, UnavailableError
from bench.faults.scenarios.links import NO_NAMESPACE, namespace
from bench.harness.samples import spread
from bench.link.link import LOOPBACK, LinkSpec
from shared.broker.broker import Broker
from shared.mqtt.settings import KEEPALIVE_S
from shared.runlog.latency_log import Outcome

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


def narrow(rig: Rig) -> Finding:
    """Sends a window of the largest frames, and a larger one, over links with exactly the lowest bandwidth."""
    log = rig.folder / "broker.log"
    space, remarks = _narrow_namespace(rig)
    broker = rig.broker(host=space.outside if space else LOOPBACK, open_to_network=True, log=log)
    rig.worker(broker.url, height=_HEIGHT, width=_WIDTH)
    source = rig.pictures(_LARGEST_FRAMES, _HEIGHT, _WIDTH)
    for picture in rig.pictures(1, _LARGER * _HEIGHT, _WIDTH).iterdir():
        (source / f"larger-{picture.name}").write_bytes(picture.read_bytes())
    link = rig.link(broker, LinkSpec(bandwidth_mbps=_MBPS))
    flags = ("--min-bandwidth", f"{_MBPS:g}", "--resize-at", "cloud", "--resize", "stretch")
    vehicles = [rig.vehicle(link.url, "deadline", source=source, flags=(*flags, "--deadline-ms", "20000"))]
    if space:
        patient = (*flags, "--answer-timeout", f"{_ANSWER_S:g}")
        vehicles.append(rig.vehicle(broker.url, "patient", source=source, wrapper=space.wrapper, flags=patient))
    for vehicle in vehicles:
        vehicle.finish(limit_s=180)
    rows = [row for vehicle in vehicles for row in vehicle.rows()]
    took_s = [float(row["total_ms"]) / 1e3 for row in rows if row["outcome"] == Outcome.ANSWERED]
    given_up = [row for vehicle in vehicles[1:] for row in vehicle.rows() if row["outcome"] == Outcome.LOST]
    too_large = [row for row in rows if row["reason"].startswith("too_large")]
    return Finding(
        (
            Figure("largest frame", max(int(row["bytes_up"]) for row in rows) / 1e6, "MB"),
            Figure("longest journey", max(took_s, default=None), "s", most=_ANSWER_S),
            Figure("frames without a deadline given up", len(given_up), most=0),
            Figure("reconnects", _reconnects(log, vehicles), most=0),
        ),
        rig.accounts(*vehicles),
        remarks,
        () if len(too_large) == len(vehicles) else (f"{len(too_large)} frames refused as too large, not one each",),
    )


def lossy(rig: Rig) -> Finding:
    """Runs one vehicle for each of 2, 5 and 10 % packet loss and 50 and 300 ms round trip, all at once."""
    log = rig.folder / "broker.log"
    cells = [(loss, round_trip_s) for loss in _LOSSES for round_trip_s in _ROUND_TRIPS_S]
    spaces = [namespace(rig) for _ in cells]
    broker = rig.broker(host=spaces[0].outside if spaces[0] else LOOPBACK, open_to_network=True, log=log)
    rig.worker(broker.url)
    vehicles = [_lossy_vehicle(rig, broker, space, *cell) for space, cell in zip(spaces, cells, strict=True)]
    for vehicle in vehicles:
        vehicle.go()
    for vehicle in vehicles:
        vehicle.finish()
    figures = [figure for vehicle, cell in zip(vehicles, cells, strict=True) for figure in _cell(vehicle, *cell)]
    return Finding(
        (*figures, Figure("reconnects", _reconnects(log, vehicles), most=0)),
        rig.accounts(*vehicles),
        () if spaces[0] else (NO_NAMESPACE,),
    )


def _narrow_namespace(rig: Rig) -> tuple[Namespace | None, tuple[str, ...]]:
    """Creates a network namespace with the lowest bandwidth; returns None and the reason if that is not possible."""
    space = namespace(rig)
    if space is None:
        return None, (NO_NAMESPACE,)
    try:
        space.narrow(_MBPS)
    except UnavailableError as error:
        return None, (f"only over the fault proxy: {error}",)
    return space, ()


def _lossy_vehicle(
    rig: Rig, broker: Broker, space: Namespace | None, loss: float, round_trip_s: float
) -> VehicleProcess:
    """Starts a vehicle behind its own link; it waits for `go()`."""
    if space:
        space.radio.air = Air(round_trip_s / 2, loss)
        wrapper: Sequence[str] = space.wrapper
        url = broker.url
    else:
        link = rig.link(broker, LinkSpec(delay_ms=round_trip_s / 2 * 1e3, loss_percent=100 * loss))
        url, wrapper = link.url, ()
    return rig.vehicle(
        url,
        f"loss-{100 * loss:.0f}-{1e3 * round_trip_s:.0f}ms",
        pictures=_LOSSY_FRAMES,
        rate_hz=_LOSSY_HZ,
        flags=("--deadline-ms", str(_DEADLINE_MS)),
        wrapper=wrapper,
        waits_for_go=True,
    )


def _cell(vehicle: VehicleProcess, loss: float, round_trip_s: float) -> Iterator[Figure]:
    """Yields the figures of one combination of loss and round trip."""
    title = f"{loss:.0%} of {1e3 * round_trip_s:.0f} ms:"
    rows = vehicle.rows()
    took_ms = [float(row["total_ms"]) for row in rows if row["outcome"] == Outcome.ANSWERED]
    yield Figure(f"{title} p50", spread(took_ms)["median"] if took_ms else None, "ms", most=_DEADLINE_MS)
    yield Figure(f"{title} p99", spread(took_ms)["p99"] if took_ms else None, "ms")
    most = _MOST_LATE if loss <= _JUDGED_LOSS else None
    yield Figure(f"{title} not answered in time", 100 * (1 - len(took_ms) / len(rows)), "%", most=most)


def _reconnects(log: Path, vehicles: Sequence[VehicleProcess]) -> int:
    return sum(reconnects(log, f"skylane-vehicle-{vehicle.name}") for vehicle in vehicles)


SCENARIOS = (
    Scenario(
        10,
        "least-bandwidth",
        f"links of {_MBPS:g} Mbit/s, the least that was promised, and a window full of the largest frames",
        "frames complete or expire, no reconnect; a larger one is refused at the vehicle",
        narrow,
    ),
    Scenario(
        11,
        "lossy-links",
        "2, 5 and 10 % of packets lost, 50 and 300 ms there and back",
        "frames are answered or expire, no reconnect",
        lossy,
    ),
)
