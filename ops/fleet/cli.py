"""`skylane status` and `skylane top`, and the fleet as tables for a terminal."""

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ops.fleet.fleet import LEFT, FleetMonitor, FleetState, missed_frames
from shared.errors import SkylaneError
from shared.flags import FiniteRange, topic_name
from shared.health import SILENT_AFTER_S
from shared.mqtt.broker_options import BrokerOptions, broker_options, connection_from
from shared.network.address import Address
from shared.network.tls import certificate_expiries, server_certificate_expiry
from shared.registry import Entry, load
from shared.runlog.percentiles import MISSING
from shared.runtime.processes import interrupt_on_termination
from shared.terminal_table import Table, result_table

_LISTEN_S = SILENT_AFTER_S + 0.2  # Every node reports once in two seconds; one that does not is shown as silent.
_SERVERS = {"--metrics": Entry("ops.fleet.prometheus_metrics:serve_fleet", "metrics")}

_name = click.option(
    "--name",
    type=topic_name("viewer"),
    default="viewer",
    show_default=True,
    help="Name of the viewer's or operator's certificate in --certs.",
)
_MOST_ROWS = 60  # Maximum number of rows of a table.
_MOST_PROBLEMS = 20
_MOST_LEFT = 5
_MOST_MODELS = 3  # Maximum number of models shown for a worker.
_GOOD, _BAD = "green", "bold red"

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str | Text]]


@click.command()
@broker_options
@_name
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve it for Prometheus until Ctrl-C, instead of printing it (skylane[metrics]).",
)
def status(name: str, *, as_json: bool, metrics: str | None, **flags: Any) -> None:
    """Show the workers and vehicles at a broker, with their last minute, and which of them need a look.

    The answer takes up to three seconds, as every node reports once in two, and six if one that is online does not report.
    The exit code is 0 if the broker answers.
    """
    connection = connection_from(flags)
    if metrics is not None:
        if as_json:
            raise click.UsageError("--json prints once, --metrics serves until Ctrl-C: give one of them")
        serve_fleet = load("option", _SERVERS, "--metrics")
        with _watched(connection, name) as fleet:
            serve_fleet(metrics, fleet)
        return
    with _watched(connection, name) as fleet:
        certificates = _certificates(connection, name)
        fleet.wait_until_heard(_LISTEN_S)
        state = fleet.state(certificates)
    if as_json:
        click.echo(json.dumps(asdict(state), indent=2))
    else:
        Console().print(fleet_tables(state))


@click.command()
@broker_options
@_name
@click.option("--seconds", type=FiniteRange(min=0.1), help="End after so many seconds. [at Ctrl-C]")
def top(name: str, seconds: float | None, **flags: Any) -> None:
    """Show the same as `skylane status`, live, until Ctrl-C."""
    connection = connection_from(flags)
    console = Console()
    until_s = time.monotonic() + (seconds or math.inf)
    with (
        suppress(KeyboardInterrupt),
        interrupt_on_termination(),
        _watched(connection, name) as fleet,
        Live(console=console, screen=console.is_terminal, auto_refresh=False) as live,
    ):
        certificates = _certificates(connection, name)
        while (rest_s := until_s - time.monotonic()) > 0:
            time.sleep(min(1.0, rest_s))
            live.update(fleet_tables(fleet.state(certificates)), refresh=True)


@contextmanager
def _watched(connection: BrokerOptions, name: str) -> Iterator[FleetMonitor]:
    with connection.open(f"skylane-view-{uuid.uuid4().hex[:12]}", None, name=name) as bus:
        fleet = FleetMonitor()
        fleet.open(bus)
        yield fleet


def _certificates(connection: BrokerOptions, name: str) -> dict[str, float]:
    """Returns the expiry of the broker's certificate and of the files of --certs, by name, in seconds since 1970.

    Only the ten files that expire first are included; no file without the library that reads them.
    """
    address = Address.parse(connection.broker)
    if not address.tls:
        return {}
    expiries_by_file = {}
    given = {Path(file) for file in (connection.tls_ca, connection.tls_cert) if file}
    for path in given | {
        path for kind in ("*.crt", "crl.pem") for path in (connection.certs or Path()).glob(kind) if connection.certs
    }:
        with suppress(SkylaneError):
            expiries = certificate_expiries(path, is_revocation_list=path.name == "crl.pem")
            if expiries:
                expiries_by_file[path.name] = min(expiries).timestamp()
    expiries_s = dict(sorted(expiries_by_file.items(), key=lambda item: item[1])[:10])
    with suppress(OSError):  # The broker has ended since the connection was opened.
        broker_s = server_certificate_expiry(address, connection.certificates(name), connection.connect_timeout_s)
        expiries_s = {"broker": broker_s} | expiries_s
    return expiries_s


def fleet_tables(state: FleetState) -> Group:
    """Returns the fleet as tables, below the problems that need attention."""
    lines = [Text(_broker(state.broker))]
    if days := ", ".join(f"{name} in {left:.0f} days" for name, left in state.certificate_days.items() if left >= 0):
        lines.append(Text(f"certificates expire: {days}"))
    lines += [Text(line, _BAD) for line in _problem_lines(state)]
    offline = f"{state.vehicles_offline} offline" if state.vehicles_offline else ""
    workers = _table("Workers", state.workers, _WORKER_COLUMNS)
    return Group(*lines, workers, _table("Vehicles", state.vehicles, _VEHICLE_COLUMNS, offline))


def _broker(values: Mapping[str, str]) -> str:
    parts = []
    for name, (text, unit) in _BROKER_TEXTS.items():
        with suppress(KeyError, ValueError):  # The broker has no such topic, or it holds no number.
            parts.append(text.format(float(values[name]) / unit if unit else values[name]))
    return f"broker: {' · '.join(parts) or 'it tells nothing about itself'}"


_BROKER_TEXTS = {  # Formats by name; numbers are divided by the unit.
    "version": ("{}", None),
    "uptime": ("up {}", None),
    "clients": ("{} clients", None),
    "dropped_messages": ("{} messages dropped", None),
    "messages_per_minute": ("{:.0f} messages/s", 60),
    "bytes_per_minute": ("{:.2f} MB/s", 60e6),
}


def _problem_lines(state: FleetState) -> Iterator[str]:
    yield from state.problems
    lines = [
        f"{kind} {row['name']}: {problem}"
        for kind, rows in (("worker", state.workers), ("vehicle", state.vehicles))
        for row in rows
        if row["problems"] != LEFT
        for problem in row["problems"]
    ]
    yield from lines[:_MOST_PROBLEMS]
    if len(lines) > _MOST_PROBLEMS:
        yield f"{len(lines) - _MOST_PROBLEMS} more problems, see --json"
    if left := [row["name"] for row in state.workers if row["problems"] == LEFT]:
        more = ", …" if len(left) > _MOST_LEFT else ""
        yield f"offline workers: {len(left)}: {', '.join(left[:_MOST_LEFT])}{more}"


def _table(title: str, rows: Sequence[Row], columns: Columns, more: str = "") -> Table:
    hidden = f"{len(rows) - _MOST_ROWS} more, see --json" if len(rows) > _MOST_ROWS else ""
    caption = " · ".join(filter(None, ("of the last minute; times: p50 / p95" if rows else "", more, hidden)))
    formats = {heading: "<" if heading in ("name", "state", "model") else ">" for heading in columns}
    cells = [[cell(row) for cell in columns.values()] for row in rows[:_MOST_ROWS]]
    return result_table(f"{title}: {len(rows)}", formats, cells, caption)


def _number(name: str, spec: str, unit: float = 1) -> Callable[[Row], str]:
    return lambda row: MISSING if row[name] is None else f"{row[name] / unit:{spec}}"


def _times(name: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        times = row[name]
        return MISSING if times is None else " / ".join(_number(part, ".0f")(times) for part in ("p50", "p95"))

    return shown


def _missed(row: Row) -> str:
    """Returns the share of the frames without a result."""
    frames = row["frames"]
    if not frames or not sum(frames.values()):
        return MISSING
    return f"{100 * missed_frames(frames).total() / sum(frames.values()):.0f} %"


def _models(row: Row) -> Text:
    names, engine = row["models"], row["engine"]
    more = [f"{len(names) - _MOST_MODELS} more"] if len(names) > _MOST_MODELS else []
    return Text(", ".join([*names[:_MOST_MODELS], *more]) + (f" ({engine})" if engine else ""))


_COLUMNS: Columns = {
    "name": lambda row: Text(row["name"], _BAD if row["problems"] else ""),
    "state": lambda row: Text(row["state"], _GOOD if row["state"] == "online" else _BAD),
    "frames/s": _number("frames_per_s", ".1f"),
}
_WORKER_COLUMNS: Columns = {
    **_COLUMNS,
    "refused": _missed,
    "queue ms": _times("queue_ms"),
    "inference ms": _times("inference_ms"),
    "waiting": _number("in_queue", ".0f"),
    "CPU %": _number("cpu_percent", ".0f"),
    "MB": _number("memory_bytes", ".0f", 1e6),
    "GPU %": _number("gpu_percent", ".0f"),
    "model": _models,
}
_VEHICLE_COLUMNS: Columns = {
    **_COLUMNS,
    "no result": _missed,
    "total ms": _times("total_ms"),
    "in flight": _number("in_flight", ".0f"),
    "clock ± ms": _number("clock_error_ms", ".2f"),
    "seen s ago": _number("seen_s_ago", ".0f"),
    "model": lambda row: Text(row["model"] or MISSING),
}
