"""What TLS costs: a secured broker beside a plain one, in alternating rounds of one run.

The bus alone first, frames of two sizes there and a few bytes back; then the whole journey with an engine, where what TLS
takes is to be lost in what the engine takes.
"""

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil
from rich.console import Console

from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.harness.samples import spread
from bench.load import playback
from bench.load.bus_echo import wire
from bench.load.worker_process import Worker
from cloud.models.repository import default_root
from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from shared.network.address import Address
from shared.network.broker_options import Connection
from shared.network.tls import create_tls_context
from shared.runtime.machine import machine
from shared.terminal_table import Table

SIZES = {"145 KB": 145_000, "1.77 MB": 1_765_632}  # A JPEG picture of 968×608 pixels, and the same raw.
_VEHICLE, _WORKER = "vehicle", "worker"
_IN_FLIGHT = 8  # Frames, where the bus is to carry as many as it can.
_ANSWER_S = 30.0
_THROUGHPUT_TARGET = 0.95  # Of the plain journey's.


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how often."""

    models: Path
    model: str = "road-small"
    rounds: int = 5
    frames: int = 30  # Of a round with an engine; none: the bus alone.
    window: int = 4
    messages: int = 60  # Of a round of the bus alone, of each size.


@dataclass(frozen=True, slots=True)
class Door:
    """A broker to measure, and the certificates that it asks for."""

    name: str
    broker: Broker
    certs: Path | None

    @property
    def flags(self) -> tuple[str, ...]:
        """What a command needs to be let in; by its name it finds its certificate."""
        return () if self.certs is None else ("--certs", str(self.certs))


@dataclass(slots=True)
class Rounds:
    """What one door gave: by size of the bus alone, and with the engine, by round."""

    round_trip_ms: dict[str, list[float]] = field(default_factory=dict)
    mb_per_s: dict[str, list[float]] = field(default_factory=dict)
    total_ms: list[float] = field(default_factory=list)  # Medians.
    answered_hz: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)  # Of worker and broker, a frame.


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each. Returns what `--json` prints.

    Raises:
        SkylaneError: the model, a broker or a worker cannot be used, or a frame was not answered.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))
        certs = _certificates(folder / "certs")
        doors = (
            Door("plain", stack.enter_context(Broker.start(kind="mosquitto")), None),
            Door("tls", stack.enter_context(Broker.start(secured=certs)), certs),
        )
        rounds = {door.name: Rounds() for door in doors}
        _measure_bus(plan, doors, rounds, on_step)
        if plan.frames:
            _measure_journey(plan, doors, rounds, folder, on_step)
        return {
            "plan": {key: str(value) if isinstance(value, Path) else value for key, value in asdict(plan).items()},
            "bus": {size: _bus_figures(rounds, size) for size in SIZES},
            "journey": _journey_figures(rounds) if plan.frames else None,
            "cipher": _cipher(doors[1]),
            "broker": doors[1].broker.description,
            "machine": machine(),
        }


def _certificates(folder: Path) -> Path:
    authority = CertificateAuthority(folder)
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, _VEHICLE, 1)
    authority.node(Role.WORKER, _WORKER, 1)
    return folder


def _alternating(rounds: int, doors: Sequence[Door]) -> Iterator[tuple[int, Door]]:
    """A B, B A, A B: what drifts on the machine falls on both alike."""
    for number in range(rounds):
        for door in doors if number % 2 == 0 else reversed(doors):
            yield number, door


def _measure_bus(
    plan: Plan, doors: Sequence[Door], rounds: Mapping[str, Rounds], on_step: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        wires = {
            door.name: stack.enter_context(wire(door.broker.url, certs=door.certs, vehicle=_VEHICLE, name=_WORKER))
            for door in doors
        }
        for number, door in _alternating(plan.rounds, doors):
            on_step(f"bus alone, round {number + 1} of {plan.rounds}, {door.name}")
            bus, got = wires[door.name], rounds[door.name]
            for size, size_bytes in SIZES.items():
                payload = os.urandom(size_bytes)
                trips_ms = [1e3 * bus.send(payload, 1, 1) for _ in range(plan.messages)]
                got.round_trip_ms.setdefault(size, []).append(median(trips_ms))
                took_s = bus.send(payload, plan.messages, _IN_FLIGHT)
                got.mb_per_s.setdefault(size, []).append(plan.messages * size_bytes / 1e6 / took_s)


def _measure_journey(
    plan: Plan, doors: Sequence[Door], rounds: Mapping[str, Rounds], folder: Path, on_step: Callable[[str], None]
) -> None:
    played = playback.Plan(bag=sample_bag(plan.frames), models=plan.models, model=plan.model, frames=plan.frames)
    with ExitStack() as stack:
        workers = {}
        for door in doors:
            on_step(f"starting a worker, {door.name}")
            worker = partial(Worker, models=plan.models, model=plan.model, name=_WORKER, device="cpu")
            workers[door.name] = stack.enter_context(worker(door.broker.url, flags=door.flags))
        for number, door in _alternating(plan.rounds, doors):
            on_step(f"with an engine, round {number + 1} of {plan.rounds}, {door.name}")
            flags = ["--vehicle", _VEHICLE, *door.flags]
            run = folder / f"{door.name}-{number}"
            pids = (workers[door.name].pid, door.broker.pid)
            before_s = _processor_s(pids)
            one = playback.played(played, door.broker.url, run / "latency", window=1, flags=flags)
            many = playback.played(played, door.broker.url, run / "throughput", window=plan.window, flags=flags)
            rounds[door.name].total_ms.append(median(float(row["total_ms"]) for row in one))
            rounds[door.name].answered_hz.append(playback.rate_hz(many))
            used_ms = 1e3 * (_processor_s(pids) - before_s)
            rounds[door.name].processor_ms.append(used_ms / (len(one) + len(many)))


def _processor_s(pids: Sequence[int]) -> float:
    """What processes have used of all cores so far, user and system."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def _bus_figures(rounds: Mapping[str, Rounds], size: str) -> dict[str, Any]:
    trips = {name: each.round_trip_ms[size] for name, each in rounds.items()}
    rates = {name: each.mb_per_s[size] for name, each in rounds.items()}
    return {"round_trip_ms": _compared(trips), "mb_per_s": _compared(rates)}


def _journey_figures(rounds: Mapping[str, Rounds]) -> dict[str, Any]:
    return {
        "total_ms": _compared({name: each.total_ms for name, each in rounds.items()}),
        "answered_hz": _compared({name: each.answered_hz for name, each in rounds.items()}),
        "processor_ms": _compared({name: each.processor_ms for name, each in rounds.items()}),
    }


def _compared(by_round: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Both ways' medians over the rounds, and TLS over plain, round by round."""
    ratios = [tls / plain for plain, tls in zip(by_round["plain"], by_round["tls"], strict=True)]
    medians = {name: median(values) for name, values in by_round.items()}
    return {**medians, "ratio": median(ratios), "ratio_spread": spread(ratios), "ratio_by_round": ratios}


def _cipher(door: Door) -> str:
    """What a client and the broker agree on, such as "TLSv1.3 TLS_AES_256_GCM_SHA384"."""
    address = Address.parse(door.broker.url)
    context = create_tls_context(address, Connection(certs=door.certs).certificates(_VEHICLE))
    with (
        socket.create_connection((address.host, address.port), timeout=_ANSWER_S) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secured,
    ):
        cipher = secured.cipher()
        return f"{secured.version()} {cipher[0] if cipher else 'no cipher'}"


@click.command()
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--frames", type=click.IntRange(0), default=30, show_default=True, help="A round; 0: the bus alone.")
@click.option("--window", type=click.IntRange(1, 64), default=4, show_default=True, help="Of the throughput rounds.")
@click.option("--messages", type=click.IntRange(8), default=60, show_default=True, help="A round of the bus alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def tls(models: Path | None, *, as_json: bool, **plan: Any) -> None:
    """Compare a secured broker with a plain one: the bus alone, and the whole journey with an engine."""
    if plan["frames"] == 1:
        raise click.UsageError("--frames 1: a rate takes two frames; give 2 or more, or 0 for the bus alone")
    with Console(stderr=True).status("preparing") as status:
        result = measure(Plan(models=models or default_root(), **plan), status.update)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    plan, journey = result["plan"], result["journey"]
    table = Table(title=f"TLS beside plain, {plan['rounds']} alternating rounds")
    for heading in ("figure", "plain", "tls", "tls / plain", "by round, least to most"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    rows = {}
    for size, figures in result["bus"].items():
        rows[f"bus alone, {size}, round trip ms"] = figures["round_trip_ms"]
        rows[f"bus alone, {size}, MB/s"] = figures["mb_per_s"]
    if journey:
        rows[f"{plan['model']}, one in flight, ms"] = journey["total_ms"]
        rows[f"{plan['model']}, window {plan['window']}, answered /s"] = journey["answered_hz"]
        rows[f"{plan['model']}, worker's and broker's processor ms a frame"] = journey["processor_ms"]
    for name, figure in rows.items():
        by_round = figure["ratio_by_round"]
        spread_text = f"{min(by_round):.3f} to {max(by_round):.3f}"
        table.add_row(name, f"{figure['plain']:.2f}", f"{figure['tls']:.2f}", f"{figure['ratio']:.3f}", spread_text)
    console.print(table)
    if journey:
        kept = journey["answered_hz"]["ratio"]
        verdict = "met" if kept >= _THROUGHPUT_TARGET else "NOT met"
        console.print(
            f"throughput kept: {kept:.3f} (median of rounds; target {_THROUGHPUT_TARGET}, {verdict})", highlight=False
        )
    console.print(f"{result['cipher']}, certificates ECDSA P-256, both sides verified", highlight=False)
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)
