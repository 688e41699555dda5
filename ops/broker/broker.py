"""Runs an MQTT broker on this machine: Mosquitto, or the embedded one."""

import errno
import ipaddress
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

import psutil

from ops.broker.mosquitto import (
    MOSQUITTO_MISSING,
    BrokerError,
    MosquittoListener,
    find_mosquitto,
    first_listener,
    mosquitto_version,
    renew_secured_files,
    write_config,
    write_secured_config,
)
from shared.errors import MissingExtraError, reason_of
from shared.files import create_file
from shared.network.endpoint import is_loopback
from shared.runtime.processes import terminate

_START_TIMEOUT_S = 60.0  # amqtt takes 2 s to import, and far longer on a busy machine.
_STOP_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 1.0
_POLL_S = 0.02
_FREE_PORT_TRIES = 3
_LINE_LIMIT = 300  # Characters of the log in an error message.
_CONNECT = b"\x10\x0c\0\4MQTT\4\2\0\x3c\0\0"  # MQTT 3.1.1, a clean session, keep-alive 60 s, no client name.
# Hosts that stand for all addresses, and an address of this machine.
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  Only compared.
_OPENSSL = ": OpenSSL Error["


class BrokerKind(StrEnum):
    """The choice of a broker."""

    AUTO = "auto"  # Mosquitto if it is installed, else the embedded one.
    MOSQUITTO = "mosquitto"
    EMBEDDED = "embedded"  # amqtt: MQTT 3.1.1 only, no shared subscriptions.


class PortInUseError(BrokerError):
    """Another process listens on the port."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        super().__init__(
            f"port {port} of {host} is in use: stop the process that listens there, or choose another with --port"
        )


@dataclass(slots=True)
class Broker:
    """A running broker. It stops at the end of the `with` block, or when this process dies."""

    kind: BrokerKind
    version: str
    program: str
    listener: MosquittoListener
    _process: subprocess.Popen[bytes]
    _watchdog: subprocess.Popen[bytes]
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)
    _log: Path = field(repr=False)
    _secured: Path | None = None

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
        """Starts a broker and returns once it accepts connections.

        Args:
            port: TCP port; 0 takes a free one. Ignored with `config`.
            host: Address to listen on. It must be loopback, as anyone may publish there, unless `open_to_network` or
                `secured` is given.
            kind: A value of `BrokerKind`.
            config: Mosquitto configuration to run instead of the development one; its first listener becomes `url`.
            secured: Folder of `skylane broker certs`; runs Mosquitto with the secured settings and these certificates.
            log: File for the broker's log; None: a temporary file.
            open_to_network: Allows an address that other machines can reach.

        Raises:
            BrokerError: the broker is not installed, the port is in use, or the broker refuses the configuration.
            MissingExtraError: the embedded broker is chosen and amqtt is not installed.
        """
        broker_kind, host = BrokerKind(kind), host.removeprefix("[").removesuffix("]")
        if config is not None:
            return cls._start_once(first_listener(config), broker_kind, log, config=config)
        if not (open_to_network or secured or is_loopback(host)):
            raise BrokerError(
                f"host {host} would let everyone who reaches this machine publish: "
                "listen on 127.0.0.1, require certificates with --secured, or give --open-to-network"
            )
        if secured is not None and broker_kind is BrokerKind.EMBEDDED:
            raise BrokerError("the embedded broker has no access control: leave out --kind or --secured")
        tls = secured is not None
        for _ in range(_FREE_PORT_TRIES):
            try:
                return cls._start_once(
                    MosquittoListener(host, port or _bind(host, 0), tls), broker_kind, log, secured=secured
                )
            except PortInUseError:
                if port:
                    raise
        raise BrokerError(f"no free port on {host} after {_FREE_PORT_TRIES} tries: choose one with --port")

    @classmethod
    def _start_once(
        cls,
        listener: MosquittoListener,
        kind: BrokerKind,
        log: Path | None,
        *,
        config: Path | None = None,
        secured: Path | None = None,
    ) -> Self:
        _bind(listener.host, listener.port)  # Else another server on that port would be taken for this broker.
        program = None if kind is BrokerKind.EMBEDDED else find_mosquitto()
        if program is None and (kind is BrokerKind.MOSQUITTO or config or secured):
            instead = "" if config or secured else " (or use --kind embedded, which speaks MQTT 3.1.1 only)"
            raise BrokerError(f"{MOSQUITTO_MISSING}{instead}")
        folder = tempfile.TemporaryDirectory(prefix="skylane-broker-", dir=_parent_folder() if secured else None)
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
            _secured=secured,
        )
        try:
            broker._await_listening()
        except BaseException:
            broker.stop()
            raise
        return broker

    @property
    def url(self) -> str:
        """URL for clients, such as mqtt://127.0.0.1:1883."""
        return self._url(_reachable(self.listener.host))

    @property
    def network_urls(self) -> list[str]:
        """URLs for clients on other machines, if the broker listens on all addresses: by address, then by host name."""
        if self.listener.host not in _ALL_ADDRESSES:
            return []
        # On `::`, both brokers accept IPv6 only.
        addresses = _network_addresses(socket.AF_INET6 if ":" in self.listener.host else socket.AF_INET)
        return [self._url(host) for host in (*addresses, socket.gethostname())]

    @property
    def pid(self) -> int:
        """Process identifier of the broker."""
        return self._process.pid

    @property
    def description(self) -> str:
        """One line that names the broker and why it was chosen."""
        if self.kind is BrokerKind.MOSQUITTO:
            return f"broker: Mosquitto {self.version} at {self.url} ({self.program})"
        reason = "as requested" if find_mosquitto() else "no Mosquitto on this machine"
        return f"broker: the embedded amqtt {self.version} at {self.url} ({reason}; MQTT 3.1.1, one worker)"

    def wait(self, timeout_s: float) -> int | None:
        """Waits for the broker to end by itself; returns its exit code, or None after the timeout."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def reload(self) -> None:
        """Makes Mosquitto read its certificates, revocation list, password file and ACL again; its clients stay connected.

        Raises:
            SkylaneError: the broker has no such files, or could not use one of them; it keeps what it has.
        """
        if self.kind is not BrokerKind.MOSQUITTO:
            raise BrokerError("the embedded broker has no certificates and passwords")
        if self._secured is not None:
            renew_secured_files(Path(self._folder.name), self._secured)
        self._process.send_signal(signal.SIGHUP)

    def log_tail(self) -> str:
        """Returns the end of the broker's log, for error messages.

        It starts at the last line that is not from OpenSSL: that line names the file that Mosquitto cannot use.
        """
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        first = next((at for at, line in reversed([*enumerate(lines)]) if _OPENSSL not in line), 0)
        return " / ".join(lines[first:])[:_LINE_LIMIT] or "it logged nothing"

    def stop(self) -> None:
        """Stops the broker with SIGTERM, then with SIGKILL. A second call has no effect."""
        terminate(self._watchdog, _STOP_TIMEOUT_S)  # First, as it would otherwise signal a reused process id.
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
        terminate(self._process, _STOP_TIMEOUT_S)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _url(self, host: str) -> str:
        scheme = "mqtts" if self.listener.tls else "mqtt"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.listener.port}"

    def _await_listening(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.wait(_POLL_S) is not None:
                raise BrokerError(f"{self.program} ended at once: {self.log_tail()}")
            if self._answers():
                return
        raise BrokerError(
            f"{self.program} did not answer at {self.url} within {_START_TIMEOUT_S:.0f} s: {self.log_tail()}"
        )

    def _answers(self) -> bool:
        """Connects and returns whether the broker answers.

        An open port is not enough: Mosquitto listens before it loads certificates and opens its other listeners, and
        ends if one of them fails.
        """
        address = (_reachable(self.listener.host), self.listener.port)
        try:
            with socket.create_connection(address, _ANSWER_TIMEOUT_S) as connection:
                if self.listener.tls:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    context.wrap_socket(connection).close()
                    return True
                connection.sendall(_CONNECT)
                if connection.recv(1):
                    return True
        except (ConnectionRefusedError, TimeoutError):
            return False
        except OSError:
            pass
        return self.wait(_ANSWER_TIMEOUT_S) is None  # A broker that ends closes the connection just before.


def _embedded_command(listener: MosquittoListener) -> tuple[list[str], str]:
    try:
        release = version("amqtt")
    except PackageNotFoundError:
        raise MissingExtraError("the embedded broker", "amqtt", "broker") from None
    # -P keeps the modules of this folder off amqtt's import path.
    program = Path(__file__).with_name("embedded.py")
    return [sys.executable, "-P", "-W", "ignore", str(program), listener.host, str(listener.port)], release


def _parent_folder() -> str | None:
    """Returns the parent of the broker's files: the folder for temporary files, unless Mosquitto's own user cannot reach that."""
    folder = Path(tempfile.gettempdir()).resolve()
    is_closed = not all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))
    return "/tmp" if os.geteuid() == 0 and is_closed else None  # noqa: S108  The folder in it has a random name.


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        with create_file(log) as output:
            # A new session, so that Ctrl-C does not reach the broker: the nodes drain through it.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        raise BrokerError(f"cannot run {command[0]}: {reason_of(error)}") from error


def _watch(pid: int) -> subprocess.Popen[bytes]:
    """Starts a shell that kills process `pid` when this process dies.

    The kernel's parent-death signal is no alternative: Mosquitto loses it when it changes its user, and it is sent when
    the forking thread ends.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _reachable(host: str) -> str:
    """Returns the address at which this machine reaches a listener on `host`."""
    return _ALL_ADDRESSES.get(host, host)


def _network_addresses(family: int) -> list[str]:
    """Returns the addresses of this machine's network interfaces, without those that no other machine can use."""
    states = psutil.net_if_stats()
    candidates = [
        ipaddress.ip_address(each.address.partition("%")[0])
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == family and name in states and states[name].isup
    ]
    return [str(address) for address in candidates if not (address.is_loopback or address.is_link_local)]


def _bind(host: str, port: int) -> int:
    """Binds and releases a port (0: any free one) and returns its number."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Ignores TIME_WAIT, like the brokers.
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise BrokerError(f"cannot listen on {host}:{port}: {error.strerror}: choose another --host") from error
        return int(listener.getsockname()[1])
