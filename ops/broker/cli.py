"""`skylane broker`: runs an MQTT broker; `skylane broker certs` issues the certificates of a secured one."""

import os
import signal
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import click
from rich.console import Console

from ops.broker.broker import Broker, BrokerKind
from ops.broker.mosquitto import BrokerError
from shared.errors import MissingExtraError, SkylaneError
from shared.flags import WholeRange, topic_name
from shared.terminal_table import Table

_DAYS = 90
_POLL_S = 0.5


@click.group(invoke_without_command=True)
@click.option(
    "--port", type=WholeRange(0, 65535), default=1883, show_default=True, help="TCP port; 0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in BrokerKind]),
    default=BrokerKind.AUTO.value,
    show_default=True,
    help="Broker to run; 'auto' is Mosquitto if it is installed, else the embedded one.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Mosquitto configuration to run.",
)
@click.option(
    "--secured",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Accept only clients with a certificate from this folder, made by 'skylane broker certs'.",
)
@click.option("--open-to-network", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Address at which Prometheus reads when the certificates of --secured expire.",
)
@click.pass_context
def broker(
    context: click.Context,
    *,
    port: int,
    host: str,
    kind: str,
    config: Path | None,
    secured: Path | None,
    open_to_network: bool,
    metrics: str | None,
) -> None:
    """Run an MQTT broker until Ctrl-C: Mosquitto if it is installed, else the embedded one.

    On SIGHUP, Mosquitto reads certificates, revocation list, passwords and ACL again, and its clients stay connected.
    """
    if context.invoked_subcommand is not None:
        return
    if config and secured:
        raise click.UsageError("--config and --secured: give only one of them")
    signals = _Signals()
    with ExitStack() as stack:
        started = Broker.start(port, host, kind, config=config, secured=secured, open_to_network=open_to_network)
        running = stack.enter_context(started)
        click.echo(running.description)
        if running.network_urls:
            click.echo(f"from other machines: {' or '.join(running.network_urls)}")
        if metrics is not None:
            click.echo(f"metrics: {stack.enter_context(_serve_metrics(metrics, secured))}")
        _run(running, signals)


class _Signals:
    """The actions that signals have requested."""

    def __init__(self) -> None:
        self.stop = self.reload = False
        self._has_terminal = os.isatty(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._received)

    def _received(self, number: int, _: object) -> None:
        if number != signal.SIGHUP or (self._has_terminal and not os.isatty(0)):  # Its terminal was closed.
            self.stop = True
        else:
            self.reload = True


def _run(running: Broker, signals: _Signals) -> None:
    """Runs until a signal requests the end of the command."""
    while not signals.stop:
        if running.wait(_POLL_S) is not None:
            raise BrokerError(f"the broker ended by itself: {running.log_tail()}")
        if signals.reload and not signals.stop:
            signals.reload = False
            _reload(running)


def _reload(running: Broker) -> None:
    try:
        running.reload()
    except SkylaneError as error:
        click.echo(f"skylane: nothing was reloaded, the broker keeps what it has: {error}", err=True)
    else:
        click.echo("reloaded: what was revoked is refused from now on; whoever is connected stays so")


def _serve_metrics(address: str, secured: Path | None) -> AbstractContextManager[str]:
    """Serves the expiry times of a secured broker's certificates and revocation list as metrics."""
    try:
        from shared.prometheus import NodeCollector, serve_metrics  # needs an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("--metrics", error.name or "prometheus_client", "metrics") from error
    files = {} if secured is None else {"authority": secured / "ca.crt", "server": secured / "server.crt"}
    return serve_metrics(address, NodeCollector("broker", **files))


@broker.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--broker", "hosts", multiple=True, metavar="HOST", help="Name or address of the broker (repeatable).")
@click.option(
    "--vehicle", "vehicles", multiple=True, type=topic_name("vehicle"), help="Name of a vehicle (repeatable)."
)
@click.option("--worker", "workers", multiple=True, type=topic_name("worker"), help="Name of a worker (repeatable).")
@click.option(
    "--operator", "operators", multiple=True, type=topic_name("operator"), help="Name of an operator (repeatable)."
)
@click.option("--viewer", "viewers", multiple=True, type=topic_name("viewer"), help="Name of a viewer (repeatable).")
@click.option(
    "--days", type=WholeRange(1, 825), default=_DAYS, show_default=True, help="Validity of the certificates in days."
)
@click.option("--again", is_flag=True, help="Issue the named certificates again, with new keys, even if they exist.")
@click.option(
    "--revoke", "revoked", multiple=True, metavar="NAME", help="Name whose certificates to revoke (repeatable)."
)
@click.option("--renew-list", is_flag=True, help="Only renew the revocation list, for a year, or as --days says.")
@click.pass_context
def certs(
    context: click.Context,
    *,
    folder: Path,
    hosts: tuple[str, ...],
    vehicles: tuple[str, ...],
    workers: tuple[str, ...],
    operators: tuple[str, ...],
    viewers: tuple[str, ...],
    revoked: tuple[str, ...],
    days: int,
    again: bool,
    renew_list: bool,
) -> None:
    """Issue certificates with the authority in FOLDER.

    The authority is created if it does not exist. Valid certificates are kept. Give each node only ca.crt and its own two files. The revocation list, crl.pem, is
    renewed by every call, for a year, never for less than before: give it to the broker before it expires.
    """
    try:
        from ops.broker.certificate_authority import CertificateAuthority, Role  # needs an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("'skylane broker certs'", error.name or "cryptography", "broker") from error
    is_named = bool(hosts or vehicles or workers or operators or viewers or revoked)
    if not (is_named or renew_list):
        raise click.UsageError(
            "no certificate was requested: give --broker, --vehicle, --worker, --operator or --viewer, or --renew-list"
        )
    authority = CertificateAuthority(folder, creates=not (again or revoked or renew_list))
    for name in revoked:
        count = authority.revoke(name)
        click.echo(f"{name}: certificates revoked: {count}; reload the broker to refuse them")
    nodes = {Role.VEHICLE: vehicles, Role.WORKER: workers, Role.OPERATOR: operators, Role.VIEWER: viewers}
    issued = [authority.broker(hosts, days, again=again)] if hosts else []
    issued += [authority.node(role, name, days, again=again) for role, names in nodes.items() for name in names]
    is_default = context.get_parameter_source("days") is click.core.ParameterSource.DEFAULT
    crl_expires = authority.renew_crl(None if is_named or is_default else days)
    console = Console(soft_wrap=True)
    if issued:
        table = Table("holder", "certificate and key", "expires", "", title=f"In {folder}")
        for certificate in issued:
            files = f"{certificate.file.name}, {certificate.file.with_suffix('.key').name}"
            state = "new" if certificate.is_new else "kept"
            table.add_row(f"{certificate.role} {certificate.name}", files, f"{certificate.expires:%Y-%m-%d}", state)
        console.print(table)
    console.print(
        f"{authority.crl_file}, the revocation list, expires {crl_expires:%Y-%m-%d}: renew it with --renew-list and "
        "reload the broker (SIGHUP), which refuses every client once it has expired.",
        f"{authority.key_file} can sign any certificate: keep the folder {authority.key_file.parent} off the broker, the "
        "vehicles and the workers.",
        f"The broker:   skylane broker --secured {folder} --host 0.0.0.0 --port 8883",
        f"Each node:    its own two files and ca.crt in a folder, then --broker mqtts://HOST:8883 --certs {folder}",
        sep="\n",
        markup=False,
        highlight=False,
    )
