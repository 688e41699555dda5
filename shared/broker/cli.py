"""`skylane broker`: run an MQTT broker for as long as the command runs, and make the certificates of a secured one."""

import signal
from pathlib import Path

import click

from shared.broker.broker import Broker, BrokerKind
from shared.broker.certificates_cli import certs
from shared.broker.mosquitto import BrokerError

_HEARTBEAT_S = 0.5


@click.group(invoke_without_command=True)
@click.option("--port", type=click.IntRange(0, 65535), default=1883, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--kind", type=click.Choice([kind.value for kind in BrokerKind]), default=BrokerKind.AUTO.value, show_default=True
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Mosquitto configuration to run.",
)
@click.option(
    "--secured",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Let in only who has a certificate of this folder, made by 'skylane broker certs'.",
)
@click.option("--open-to-network", is_flag=True, help="Let --host be an address that other machines reach.")
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
    """Run a broker until Ctrl-C: the Mosquitto on this machine, or an embedded one where there is none."""
    if context.invoked_subcommand is not None:
        return
    if config and secured:
        raise click.UsageError("--config and --secured: give one of them")
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with Broker.start(port, host, kind, config=config, secured=secured, open_to_network=open_to_network) as running:
        click.echo(running.description)
        while not ended:
            if running.wait(_HEARTBEAT_S) is not None:
                raise BrokerError(f"the broker ended by itself: {running.log_tail()}")


broker.add_command(certs)
