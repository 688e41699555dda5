"""Network namespaces in which a vehicle reaches this machine only through an emulated radio link."""

import os
import subprocess
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import psutil

from ops.broker.broker import Broker
from ops.link.link import LOOPBACK
from tests.support.faults.radio import Radio
from tests.support.faults.rig import Rig, RigError, UnavailableError

_PREFIX = "skylane-"
_MARKS = Path("/run/netns")  # Folder of iproute2 with a file for each namespace.
_NETWORKS = 1 << 14  # Networks of four addresses in 198.18.0.0/16, reserved for benchmarks (RFC 2544).
_numbers = count()


class Namespace(AbstractContextManager["Namespace"]):
    """A network namespace connected to this machine by a `Radio`; removed when the block ends.

    Prefix a command with `wrapper` to run it inside; `outside` is the address of this machine there.
    """

    def __init__(self, chance: Random) -> None:
        """Creates the namespace.

        Raises:
            UnavailableError: this machine or this user cannot; the message says what is missing.
        """
        try:
            self._make(chance)
        except RigError as error:
            raise UnavailableError(str(error)) from error

    def cut(self) -> None:
        """Takes the vehicle's network device down, which its kernel notices."""
        self._inside("link", "set", self._far, "down")

    def mend(self) -> None:
        """Brings the vehicle's network device up again."""
        self._inside("link", "set", self._far, "up")
        self._route()

    def narrow(self, mbps: float) -> None:
        """Limits both directions to `mbps` Mbit/s, with the kernel's token bucket filter.

        Raises:
            UnavailableError: the kernel has no such filter.
        """
        shape = ("root", "tbf", "rate", f"{mbps:g}mbit", "burst", "16kb", "latency", "200ms")
        try:
            for wrapper, device in (((), self._near), (self.wrapper, self._far)):
                _run(*wrapper, "tc", "qdisc", "add", "dev", device, *shape)
        except RigError as error:
            raise UnavailableError(str(error)) from error

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make(self, chance: Random) -> None:
        number = next(_numbers)
        self.name = f"{_PREFIX}{os.getpid()}-{number}"
        self.wrapper = ("ip", "netns", "exec", self.name)
        network = (os.getpid() * 4 + number) % _NETWORKS * 4
        self.outside, inside = (f"198.18.{network >> 8}.{(network & 255) + host}" for host in (1, 2))
        self._near, self._far = f"sl{os.getpid()}n{number}", f"sl{os.getpid()}f{number}"
        with ExitStack() as stack:
            _remove_forgotten()
            _ip("netns", "add", self.name)
            stack.callback(_ip, "netns", "delete", self.name)
            try:
                self.radio = stack.enter_context(Radio(self._near, self._far, chance))
            except OSError as error:
                raise UnavailableError(
                    f"cannot create network devices ({error.strerror}): needs /dev/net/tun and root"
                ) from error
            _ip("link", "set", self._far, "netns", self.name)
            _ip("address", "add", f"{self.outside}/30", "dev", self._near)
            _ip("link", "set", self._near, "up")
            self._inside("address", "add", f"{inside}/30", "dev", self._far)
            self._inside("link", "set", self._far, "up")
            self._inside("link", "set", "lo", "up")
            self._route()
            self._stack = stack.pop_all()

    def _route(self) -> None:
        """Routes all addresses of this machine over the radio; a device that goes down loses its routes."""
        self._inside("route", "add", "default", "via", self.outside)

    def _inside(self, *arguments: str) -> None:
        _run(*self.wrapper, "ip", *arguments)


def namespace(rig: Rig) -> Namespace | None:
    """Creates a network namespace for a vehicle; returns None if this machine or user cannot."""
    try:
        return rig.enter(Namespace(rig.chance))
    except UnavailableError:
        return None


def namespace_broker(rig: Rig, space: Namespace | None, **options: Any) -> Broker:
    """Starts a broker that can be reached from a namespace, if there is one."""
    return rig.broker(host=space.outside if space else LOOPBACK, open_to_network=True, **options)


def namespace_remarks(space: Namespace | None) -> tuple[str, ...]:
    """Returns what a reader must know about a scenario that ran without a namespace."""
    missing = "without network namespaces (they need root, iproute2 and /dev/net/tun): only over the fault proxy"
    return () if space else (missing,)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    """Runs a command of iproute2.

    Raises:
        RigError: the command is missing or failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RigError(f"no {command[0]}: apt-get install iproute2") from error
    if done.returncode:
        raise RigError(f"'{' '.join(command)}' failed ({done.stderr.strip()}): it needs root and kernel support")


def _remove_forgotten() -> None:
    """Removes the namespaces of runs that were killed."""
    for mark in _MARKS.glob(f"{_PREFIX}*-*"):
        owner = mark.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            with suppress(RigError):  # Another run removed it.
                _ip("netns", "delete", mark.name)
