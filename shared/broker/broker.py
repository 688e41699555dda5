"""Finds an MQTT broker on this machine and runs it for as long as it is wanted."""

import errno
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.broker.mosquitto import (
    MOSQUITTO_MISSING,
    BrokerError,
    Listener,
    find_mosquitto,
    first_listener,
    mosquitto_version,
    write_config,
)
from shared.broker.mosquitto_secured import write_secured_config
from shared.errors import MissingExtraError
from shared.network.endpoint import is_loopback
from shared.runtime.processes import end

_START_TIMEOUT_S = 60.0  # amqtt takes two seconds to import, and a busy machine many times that.
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02
_FREE_PORT_TRIES = 3
_LINE_LIMIT = 300  # Characters of a log line in a message.
_OPENSSL = ": OpenSSL Error["


class BrokerKind(StrEnum):
    """Which broker to run."""

    AUTO = "auto"  # Mosquitto where there is one, else the embedded one.
    MOSQUITTO = "mosquitto"
    EMBEDDED = "embedded"  # amqtt: MQTT 3.1.1 only, no shared subscriptions.


class PortInUseError(BrokerError):
    """Something else listens on the wanted port."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        super().__init__(f"port {port} of {host} is in use: stop what listens there, or choose another with --port")


@dataclass(slots=True)
class Broker:
    """A running broker. It ends with the `with` block, and with this process, however that dies.

    `url` is what a client connects to; `pid` is the broker's own process, for tests that kill it.
    """

    kind: BrokerKind
    version: str
    program: str
    listener: Listener
    _process: subprocess.Popen[bytes]
    _watchdog: subprocess.Popen[bytes]
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)
    _log: Path = field(repr=False)

    @classmethod
    def start(
        cls,
        port: int = 0,
        host: str = "127.0.0.1",
        kind: str = BrokerKind.AUTO,
        *,
        config: Path | None = None,
        secured: Path | None = None,
        log: Path | None = None,
        open_to_network: bool = False,
    ) -> Self:
        """Start a broker and return once it accepts connections.

        Args:
            port: TCP port; 0 takes a free one. Ignored with `config`.
            host: address to listen on. Anyone may publish there, so it must be loopback unless `open_to_network`, or
                `secured`.
            kind: one of `BrokerKind`.
            config: a Mosquitto configuration to run instead of the development one; its first listener is `url`.
            secured: a folder of `skylane broker certs`: Mosquitto with the secured settings and these certificates.
            log: file that receives the broker's log; otherwise it is kept only while the broker runs.
            open_to_network: let `host` be an address that other machines reach.

        Raises:
            BrokerError: no such broker here, a port that is taken, a configuration it refuses.
            MissingExtraError: the embedded broker is wanted and amqtt is not installed.
        """
        wanted = BrokerKind(kind)
        if config is not None:
            return cls._start_once(first_listener(config), wanted, log, config=config)
        if not (open_to_network or secured or is_loopback(host)):
            raise BrokerError(
                f"host {host} would let anyone who reaches this machine publish: "
                "listen on 127.0.0.1, let in certificates alone with --secured, or say --open-to-network"
            )
        if secured is not None and wanted is BrokerKind.EMBEDDED:
            raise BrokerError("the embedded broker knows no roles: leave --kind out, or --secured")
        tls = secured is not None
        for _ in range(_FREE_PORT_TRIES):
            try:
                return cls._start_once(Listener(host, port or _bind(host, 0), tls), wanted, log, secured=secured)
            except PortInUseError:
                if port:
                    raise
        raise BrokerError(f"no free port on {host} after {_FREE_PORT_TRIES} tries: choose one with --port")

    @classmethod
    def _start_once(
        cls,
        listener: Listener,
        kind: BrokerKind,
        log: Path | None,
        *,
        config: Path | None = None,
        secured: Path | None = None,
    ) -> Self:
        _bind(listener.host, listener.port)  # Otherwise whoever listens there would pass for ours.
        program = None if kind is BrokerKind.EMBEDDED else find_mosquitto()
        if program is None and (kind is BrokerKind.MOSQUITTO or config or secured):
            instead = "" if config or secured else " (or use --kind embedded, which speaks MQTT 3.1.1 only)"
            raise BrokerError(f"{MOSQUITTO_MISSING}{instead}")
        folder = tempfile.TemporaryDirectory(prefix="skylane-broker-")
        try:
            if program:
                if secured is not None:
                    config = write_secured_config(Path(folder.name), listener, secured)
                config = config or write_config(Path(folder.name) / "mosquitto.conf", listener)
                command, release = [str(program), "-c", str(config)], mosquitto_version(program)
            else:
                command, release = _embedded_command(listener)
            log_path = log or Path(folder.name) / "broker.log"
            process = _spawn(command, log_path)
        except BaseException:
            folder.cleanup()
            raise
        broker = cls(
            kind=BrokerKind.MOSQUITTO if program else BrokerKind.EMBEDDED,
            version=release,
            program=command[0] if program else "amqtt",
            listener=listener,
            _process=process,
            _watchdog=_watch(process.pid),
            _folder=folder,
            _log=log_path,
        )
        try:
            broker._await_listening()
        except BaseException:
            broker.stop()
            raise
        return broker

    @property
    def url(self) -> str:
        """Where clients connect, such as mqtt://127.0.0.1:1883."""
        host = _reachable(self.listener.host)
        scheme = "mqtts" if self.listener.tls else "mqtt"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.listener.port}"

    @property
    def pid(self) -> int:
        """The broker's own process."""
        return self._process.pid

    @property
    def description(self) -> str:
        """Which broker was taken and why, in one line."""
        if self.kind is BrokerKind.MOSQUITTO:
            return f"broker: Mosquitto {self.version} at {self.url} ({self.program})"
        reason = "as asked" if find_mosquitto() else "no Mosquitto on this machine"
        return f"broker: the embedded amqtt {self.version} at {self.url} ({reason}; MQTT 3.1.1, one worker)"

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the broker to end by itself; its exit code, or None while it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def log_tail(self) -> str:
        """The end of the broker's log, for a message that says why it ended.

        Mosquitto says which file it cannot use, and then, line by line, what OpenSSL thinks of it.
        """
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        first = next((at for at, line in reversed([*enumerate(lines)]) if _OPENSSL not in line), 0)
        return " / ".join(lines[first:])[:_LINE_LIMIT] or "it said nothing"

    def stop(self) -> None:
        """End the broker: by SIGTERM, and by SIGKILL when it does not listen. Stopping twice is no error."""
        end(self._watchdog, _STOP_TIMEOUT_S)  # First: it would signal the broker's process id after that is gone.
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
        end(self._process, _STOP_TIMEOUT_S)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _await_listening(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.wait(_POLL_S) is not None:
                raise BrokerError(f"{self.program} ended at once: {self.log_tail()}")
            try:
                socket.create_connection((_reachable(self.listener.host), self.listener.port), timeout=1.0).close()
            except OSError:
                continue
            return
        raise BrokerError(
            f"{self.program} did not listen at {self.url} within {_START_TIMEOUT_S:.0f} s: {self.log_tail()}"
        )


def _embedded_command(listener: Listener) -> tuple[list[str], str]:
    try:
        release = version("amqtt")
    except PackageNotFoundError:
        raise MissingExtraError("the embedded broker", "amqtt", "broker") from None
    # -P: the folder of the program holds our modules, and their names are not for amqtt to find.
    program = Path(__file__).with_name("embedded.py")
    return [sys.executable, "-P", "-W", "ignore", str(program), listener.host, str(listener.port)], release


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        with log.open("wb") as output:
            # A session of its own: Ctrl-C must reach the nodes first, and they drain through the broker.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        raise BrokerError(f"cannot run {command[0]}: {error}") from error


def _watch(pid: int) -> subprocess.Popen[bytes]:
    """Start what ends process `pid` when this one is gone.

    The kernel's parent-death signal would not do: it is lost when Mosquitto changes its user, and it follows the
    thread that forked.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _reachable(host: str) -> str:
    """The address under which this machine reaches a listener on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  Compared with, not listened on.


def _bind(host: str, port: int) -> int:
    """Take and release a port, 0 being any free one; the port that was taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As the brokers do: TIME_WAIT is free.
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise BrokerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        return int(listener.getsockname()[1])
