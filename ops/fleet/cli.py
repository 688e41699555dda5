"""`skylane status` and `skylane top`."""

import json
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from ops.fleet.fleet import FleetMonitor
from ops.fleet.tables import fleet_tables
from shared.errors import SkylaneError
from shared.flags import FiniteRange, topic_name
from shared.health import SILENT_AFTER_S
from shared.mqtt.broker_options import BrokerOptions, broker_options, connection_from
from shared.network.address import Address
from shared.network.tls import certificate_expiries, server_certificate_expiry
from shared.registry import Entry, load
from shared.runtime.processes import interrupt_on_termination

_LISTEN_S = SILENT_AFTER_S + 0.2  # Every node reports once in two seconds; one that does not is shown as silent.
_SERVERS = {"--metrics": Entry("ops.fleet.prometheus_metrics:serve_fleet", "metrics")}

_name = click.option(
    "--name",
    type=topic_name("viewer"),
    default="viewer",
    show_default=True,
    help="Name of the viewer's or operator's certificate in --certs.",
)


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
    """Returns when the broker's certificate expires, and what is in the folder of certificates, in seconds since 1970.

    Of the folder, the ten that expire first; none without the library that reads them.
    """
    address = Address.parse(connection.broker)
    if not address.tls:
        return {}
    found = {}
    given = {Path(file) for file in (connection.tls_ca, connection.tls_cert) if file}
    for path in given | {
        path for kind in ("*.crt", "crl.pem") for path in (connection.certs or Path()).glob(kind) if connection.certs
    }:
        with suppress(SkylaneError):
            expiries = certificate_expiries(path, is_revocation_list=path.name == "crl.pem")
            if expiries:
                found[path.name] = min(expiries).timestamp()
    expiries_s = dict(sorted(found.items(), key=lambda item: item[1])[:10])
    with suppress(OSError):  # The broker has ended since the connection was opened.
        broker_s = server_certificate_expiry(address, connection.certificates(name), connection.connect_timeout_s)
        expiries_s = {"broker": broker_s} | expiries_s
    return expiries_s
