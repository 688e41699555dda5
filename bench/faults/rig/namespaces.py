"""Network namespaces: a vehicle that reaches this machine over the air alone, with the kernel's own TCP on both sides."""

import os
import subprocess
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import count
from pathlib import Path
from random import Random

import psutil

from bench.faults.rig.radio import Radio
from bench.faults.rig.rig import RigError
from bench.faults.scenario import UnavailableError

_PREFIX = "skylane-"
_MARKS = Path("/run/netns")  # Where iproute2 keeps a file for every namespace.
_NETWORKS = 1 << 14  # Of four addresses, in 198.18.0.0/16, which is for benches (RFC 2544).
_numbers = count()


class Namespace(AbstractContextManager["Namespace"]):
    """A network of its own, joined to this machine by a radio; gone when the block ends.

    `wrapper` before a command runs it in there; `outside` is the address at which it finds this machine.
    """

    def __init__(self, chance: Random) -> None:
        """Make it.

        Raises:
            UnavailableError: this machine or this user cannot; the text says what is missing.
        """
        try:
            self._make(chance)
        except RigError as error:
            raise UnavailableError(str(error)) from error

    def cut(self) -> None:
        """Take the vehicle's device down: it has no network at all, and knows it."""
        self._inside("link", "set", self._far, "down")

    def mend(self) -> None:
        """Put the vehicle's device up again."""
        self._inside("link", "set", self._far, "up")
        self._route()

    def narrow(self, mbps: float) -> None:
        """Let no more than so many Mbit/s pass in either direction, by the kernel's token bucket.

        Raises:
            UnavailableError: the kernel has none.
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
                    f"no network devices of our own ({error.strerror}): /dev/net/tun and root"
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
        """All addresses of this machine are found over the radio; a device that goes down takes its routes along."""
        self._inside("route", "add", "default", "via", self.outside)

    def _inside(self, *arguments: str) -> None:
        _run(*self.wrapper, "ip", *arguments)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    """Run a command of iproute2's.

    Raises:
        RigError: there is none, or it failed. Once a namespace is there, that is no want of rights.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RigError(f"no {command[0]}: apt-get install iproute2") from error
    if done.returncode:
        raise RigError(f"'{' '.join(command)}' failed ({done.stderr.strip()}): it takes root and such a kernel")


def _remove_forgotten() -> None:
    """Remove what a bench that was killed has left behind."""
    for mark in _MARKS.glob(f"{_PREFIX}*-*"):
        owner = mark.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            with suppress(RigError):  # Another bench has just done so.
                _ip("netns", "delete", mark.name)
