"""Brokers other than Mosquitto as processes of this machine: Aedes from npm, NATS from Debian, and amqtt."""

import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

import pytest

from ops.broker import embedded
from ops.processes.child import ChildProcess
from tests.clients.conftest import need, run
from tests.pipeline.rig import connect
from tests.support.mqtt_bus import free_port
from tests.support.npm import npm_packages

_AEDES_NODE = 20  # Oldest Node.js that Aedes runs on.


class OtherBroker(ABC):
    """A broker on a free port of 127.0.0.1, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        """Prepares the broker; skips the test if it cannot be installed. `folder`: for its files."""
        self.folder = folder
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command that runs the broker in the foreground."""

    def start(self) -> None:
        """Starts the broker and waits until it accepts a connection."""
        self._process = ChildProcess(self.command(), self.folder / "broker.log", mode="ab", stdin=subprocess.DEVNULL)
        connect(self.url).close()

    def kill(self) -> None:
        """Kills the broker (SIGKILL)."""
        assert self._process is not None
        self._process.kill()


class Aedes(OtherBroker):
    """Aedes, which knows MQTT 3.1.1 and keeps everything in memory."""

    def __init__(self, folder: Path) -> None:
        need("node")
        version = run("node", "--version").stdout.strip()
        if int(version.removeprefix("v").partition(".")[0]) < _AEDES_NODE:
            pytest.skip(f"Aedes needs Node.js {_AEDES_NODE}, and this is {version}")
        super().__init__(folder)
        source = Path(__file__).parent / "aedes"
        self._program = npm_packages(source, "aedes") / "server.js"
        shutil.copy(source / self._program.name, self._program)

    def command(self) -> list[str]:
        """See OtherBroker."""
        return ["node", str(self._program), str(self.port)]


class Nats(OtherBroker):
    """The NATS server, whose MQTT is version 3.1.1 and keeps retained messages in a folder."""

    def __init__(self, folder: Path) -> None:
        need("nats-server")
        super().__init__(folder)
        self._config = folder / "nats.conf"
        self._config.write_text(
            f'listen: "127.0.0.1:{free_port()}"\n'
            "server_name: skylane\n"  # MQTT needs a name and JetStream.
            f'jetstream {{ store_dir: "{folder / "store"}" }}\n'
            "max_payload: 67108864\n"
            "max_pending: 268435456\n"
            f'mqtt {{ listen: "127.0.0.1:{self.port}" }}\n'
        )

    def command(self) -> list[str]:
        """See OtherBroker."""
        return ["nats-server", "-c", str(self._config)]


class Amqtt(OtherBroker):
    """The embedded broker of `skylane broker --kind embedded`."""

    def command(self) -> list[str]:
        """See OtherBroker."""
        return [sys.executable, "-P", "-W", "ignore", embedded.__file__, "127.0.0.1", str(self.port)]
