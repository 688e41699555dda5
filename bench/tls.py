"""`python -m bench tls`: compares a broker with TLS with a plain one.

First the broker alone, with frames of two sizes and replies of a few bytes; then whole round trips with an engine, whose
time should hide that of TLS.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from analysis.statistics.samples import spread
from bench import harness
from bench.bus_echo import EchoClient, open_echo
from bench.harness import BenchRun, Comparison, Samples
from edge.transports.transport import MQTT
from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.processes.deployment import Deployment
from ops.processes.playback import PlaybackSettings
from rosbag_tools.drive.recording import sample_bag
from shared.mqtt.broker_options import BrokerOptions
from shared.network.address import Address
from shared.network.tls import create_tls_context
from shared.terminal_table import Table, result_table

SIZES = {"145 KB": 145_000, "1.77 MB": 1_765_632}  # A JPEG image of 968×608 pixels, and the same image raw.
_PLAIN, _TLS = "plain", "tls"
_VEHICLE, _WORKER = "vehicle", "worker"
_IN_FLIGHT = 8  # Frames while the broker's throughput is measured.
_CONNECT_TIMEOUT_S = 30.0
_THROUGHPUT_TARGET = 0.95  # Throughput with TLS divided by that without.


@dataclass(frozen=True, slots=True)
class TlsPlan:
    """Settings of the comparison."""

    models: Path = harness.models()
    model: str = harness.model()
    rounds: int = harness.rounds(5, 100)
    frames: int = harness.number(30, 0, None, "Frames per round; 0 measures only the broker.")
    window: int = harness.throughput_window()
    messages: int = harness.number(60, 8, None, "Messages per round with the broker alone.")


def measure(plan: TlsPlan, run: BenchRun) -> dict[str, Any]:
    """Compare a broker with TLS with a plain one: the broker alone, and whole round trips with an engine."""
    if plan.frames == 1:
        raise click.UsageError("--frames 1: a rate needs two frames; give 2 or more, or 0 for the broker alone")
    certs = _certificates(run.folder / "certs")
    brokers = {
        _PLAIN: run.enter_context(Broker.start(kind="mosquitto")),
        _TLS: run.enter_context(Broker.start(secured=certs)),
    }
    certs_of = {_PLAIN: None, _TLS: certs}
    with ExitStack() as stack:
        candidates = {}
        for name, broker in brokers.items():
            echo = open_echo(broker.url, certs=certs_of[name], vehicle=_VEHICLE, name=_WORKER)
            candidates[name] = partial(_send, stack.enter_context(echo), plan.messages)
        bus = harness.compare(candidates, plan.rounds, run.step, step="broker alone, ")
    journey = _compare_journey(plan, brokers, certs_of, run) if plan.frames else None
    return {
        "plan": harness.plan_record(plan),
        "bus": {
            size: {name: _record(bus, f"{size} {name}") for name in ("round_trip_ms", "mb_per_s")} for size in SIZES
        },
        "journey": journey and {name: _record(journey, name) for name in ("total_ms", "answered_hz", "processor_ms")},
        "cipher": _cipher(Address.parse(brokers[_TLS].url), certs),
        "broker": brokers[_TLS].description,
    }


def _certificates(folder: Path) -> Path:
    authority = CertificateAuthority(folder)
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, _VEHICLE, 1)
    authority.node(Role.WORKER, _WORKER, 1)
    return folder


def _send(echo: EchoClient, messages: int, _round: int) -> Samples:
    samples = {}
    for size, size_bytes in SIZES.items():
        payload = os.urandom(size_bytes)
        samples[f"{size} round_trip_ms"] = [median(1e3 * echo.send(payload, 1, 1) for _ in range(messages))]
        seconds = echo.send(payload, messages, _IN_FLIGHT)
        samples[f"{size} mb_per_s"] = [messages * size_bytes / 1e6 / seconds]
    return samples


def _compare_journey(
    plan: TlsPlan, brokers: Mapping[str, Broker], certs_of: Mapping[str, Path | None], run: BenchRun
) -> Comparison:
    settings = PlaybackSettings(sample_bag(plan.frames), plan.models, plan.model, frames=plan.frames)
    deployments = {}
    # Nodes find their certificates by their names.
    flags_of = {name: [] if certs is None else ["--certs", str(certs)] for name, certs in certs_of.items()}
    for name, broker in brokers.items():
        run.step(f"starting a worker, {name}")
        deployment = Deployment(
            models=plan.models,
            model=plan.model,
            transports=[MQTT],
            broker=broker,
            name=_WORKER,
            flags=flags_of[name],
        )
        deployments[name] = run.enter_context(deployment)

    def play(name: str, number: int) -> Samples:
        pids = [pid for pid in (deployments[name].worker.pid, brokers[name].pid) if pid is not None]
        before_s, folder = harness.processor_s(pids), run.folder / name / str(number)
        rows, rate_hz = deployments[name].play_twice(
            settings, folder, plan.window, vehicle=_VEHICLE, flags=flags_of[name]
        )
        used_ms = 1e3 * (harness.processor_s(pids) - before_s)
        return {
            "total_ms": [median(float(row["total_ms"]) for row in rows)],
            "answered_hz": [rate_hz],
            "processor_ms": [used_ms / (2 * len(rows))],
        }

    candidates = {name: partial(play, name) for name in deployments}
    return harness.compare(candidates, plan.rounds, run.step, step="with an engine, ")


def _record(comparison: Comparison, measure: str) -> dict[str, Any]:
    """Medians over the rounds, and the ratio of TLS to plain round by round, which cancels drift of the machine."""
    ratio = comparison.ratio(_TLS, _PLAIN, measure)
    return {
        **{name: comparison.median(name, measure) for name in (_PLAIN, _TLS)},
        "ratio": ratio.median_of_rounds,
        "ratio_spread": spread(ratio.by_round),
        "ratio_by_round": list(ratio.by_round),
    }


def _cipher(address: Address, certs: Path) -> str:
    """Protocol and cipher that a client and the broker agree on, such as "TLSv1.3 TLS_AES_256_GCM_SHA384"."""
    context = create_tls_context(address, BrokerOptions(certs=certs).certificates(_VEHICLE))
    with (
        socket.create_connection((address.host, address.port), timeout=_CONNECT_TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secured,
    ):
        cipher = secured.cipher()
        assert cipher is not None
        return f"{secured.version()} {cipher[0]}"


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan, journey = result["plan"], result["journey"]
    records = {}
    for size, values in result["bus"].items():
        records[f"broker alone, {size}, round trip ms"] = values["round_trip_ms"]
        records[f"broker alone, {size}, MB/s"] = values["mb_per_s"]
    if journey:
        records[f"{plan['model']}, one in flight, ms"] = journey["total_ms"]
        records[f"{plan['model']}, window {plan['window']}, answered /s"] = journey["answered_hz"]
        records[f"{plan['model']}, processor ms of worker and broker a frame"] = journey["processor_ms"]
    yield result_table(
        f"TLS compared with plain, {plan['rounds']} alternating rounds",
        {"measure": "<", "plain": ".2f", "tls": ".2f", "tls / plain": ".3f", "by round, least to most": ""},
        [
            (name, record["plain"], record["tls"], record["ratio"], harness.span(record["ratio_by_round"]))
            for name, record in records.items()
        ],
    )
    if journey:
        yield harness.target_line("throughput kept", journey["answered_hz"]["ratio_by_round"], _THROUGHPUT_TARGET)
    yield f"{result['cipher']}, certificates ECDSA P-256, both sides verified"


tls = harness.bench_command("tls", TlsPlan, measure, _tables)
