"""A client that answers every frame with a few bytes, so that the bus alone is measured: `python -m bench.bus_echo`.

It ends when its standard input does.
"""

import sys
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Self

import click

from shared.bus import Delivery
from shared.connection import Connection
from shared.processes import end
from shared.topics import FRAMES, MASKS

MODEL = "bench"
ANSWER_BYTES = 6000  # As a mask of classes takes, packed.
_STOP_S = 10.0


class BusEcho(AbstractContextManager["BusEcho"]):
    """The client in a process of its own; connected when the constructor returns."""

    def __init__(self, broker: str, certs: Path | None, name: str) -> None:
        """`certs`: the folder with its certificate, `<name>.crt`, where the broker asks for one."""
        flags = [] if certs is None else ["--certs", str(certs)]
        self._process = Popen(
            [sys.executable, "-m", "bench.bus_echo", "--broker", broker, "--name", name, *flags],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        end(self._process, _STOP_S)


@click.command()
@click.option("--broker", required=True)
@click.option("--certs", type=click.Path(path_type=Path))
@click.option("--name", required=True)
def main(broker: str, certs: Path | None, name: str) -> None:
    """Answer frames until the standard input ends."""
    answer = bytes(ANSWER_BYTES)
    with Connection(broker, certs=certs).open(f"bench-echo-{uuid.uuid4().hex[:12]}", None, name=name) as bus:

        def echo(delivery: Delivery) -> None:
            names = FRAMES.names_in(delivery.topic)
            assert names is not None
            bus.publish(MASKS.of(vehicle=names["vehicle"], camera=names["camera"]), answer, qos=MASKS.qos)

        bus.subscribe(FRAMES.filter(model=MODEL), FRAMES.qos, echo)
        click.echo("ready")
        sys.stdin.read()


if __name__ == "__main__":
    main()
