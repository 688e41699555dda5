"""An emulated radio link between a network namespace and this machine, with delay, loss and outages of IP packets.

TCP on both sides is the kernel's own: it retransmits lost packets with its real timers.
"""

import fcntl
import os
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from random import Random

from shared.network.link_spec import LinkSpec

_SET_NAME = 0x400454CA  # TUNSETIFF of linux/if_tun.h.
_PACKETS_ALONE = 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI: IP packets without an additional header.
_MOST_BYTES = 1 << 16
_MOST_HELD = 4096  # Maximum packets in flight in one direction; further ones are lost.
_IDLE_S = 0.05

Packets = deque[tuple[float, bytes]]  # Each packet with its arrival time.


class Radio(AbstractContextManager["Radio"]):
    """Two network devices and the link between them; a thread forwards packets until the block ends."""

    def __init__(self, near: str, far: str, chance: Random) -> None:
        """Creates devices with these names in this process's namespace; the caller moves and addresses them.

        Raises:
            OSError: the kernel or the user's permissions do not allow such devices.
        """
        self.spec = (
            LinkSpec()
        )  # Delay and loss of packets, equal in both directions; a half-open link drops all packets.
        self.lost = 0
        self._chance = chance
        self._ended = threading.Event()
        self._ends = [_device(near)]
        try:
            self._ends.append(_device(far))
        except OSError:
            os.close(self._ends[0])
            raise
        self._thread = threading.Thread(target=self._carry, name="radio")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        one, other = self._ends
        under_way: dict[int, Packets] = {one: deque(), other: deque()}
        with selectors.DefaultSelector() as ready:
            ready.register(one, selectors.EVENT_READ, under_way[other])
            ready.register(other, selectors.EVENT_READ, under_way[one])
            while not self._ended.is_set():
                for key, _ in ready.select(_wait_s(under_way.values())):
                    self._take_in(key.fd, key.data)
                now_s = time.monotonic()
                for end, packets in under_way.items():
                    while packets and packets[0][0] <= now_s:
                        _write(end, packets.popleft()[1])

    def _take_in(self, end: int, packets: Packets) -> None:
        """Reads all packets of a device; each is dropped, or held until its arrival time."""
        spec = self.spec
        is_dark = spec.half_open_after_s is not None
        while packet := _read(end):
            if is_dark or len(packets) >= _MOST_HELD or self._chance.random() < spec.loss_percent / 100:
                self.lost += 1
            else:
                packets.append((time.monotonic() + spec.delay_s(up=True), packet))


def _wait_s(directions: Iterable[Packets]) -> float:
    """Returns the time until the next arrival; the delay is constant, so the oldest packet is next."""
    nexts = [packets[0][0] for packets in directions if packets]
    return min(_IDLE_S, max(0.0, min(nexts) - time.monotonic())) if nexts else _IDLE_S


def _device(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, _SET_NAME, struct.pack("16sH22x", name.encode(), _PACKETS_ALONE))
    except OSError:
        os.close(end)
        raise
    return end


def _read(end: int) -> bytes:
    """Reads the next packet of a device; empty if there is none or the device is down."""
    with suppress(OSError):
        return os.read(end, _MOST_BYTES)
    return b""


def _write(end: int, packet: bytes) -> None:
    with suppress(OSError):  # The device is down: the packet is lost.
        os.write(end, packet)
