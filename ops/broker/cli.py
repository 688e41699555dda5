"""The command `skylane broker`: runs an MQTT broker."""

import signal
from pathlib import Path

import click

from ops.broker.broker import Broker, BrokerKind
from ops.broker.certificates_cli import certs
from ops.broker.mosquitto import BrokerError
from shared.flags import WholeRange

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
) -> None:
    """Run an MQTT broker until Ctrl-C: Mosquitto if it is installed, else the embedded one."""
    if context.invoked_subcommand is not None:
        return
    if config and secured:
        raise click.UsageError("--config and --secured: give only one of them")
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with Broker.start(port, host, kind, config=config, secured=secured, open_to_network=open_to_network) as running:
        click.echo(running.description)
        if running.network_urls:
            click.echo(f"from other machines: {' or '.join(running.network_urls)}")
        while not stopped:
            if running.wait(_POLL_S) is not None:
                raise BrokerError(f"the broker ended by itself: {running.log_tail()}")


broker.add_command(certs)
