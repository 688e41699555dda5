"""TCP bytes received and sent by a process, from the kernel's socket statistics.

The values come from the socket diagnostics interface (`man 7 sock_diag`, `linux/inet_diag.h`, `linux/tcp.h`) that `ss
-ti` uses; this module takes a fifth of the CPU time of running `ss` every second. It sends the older request
TCPDIAG_GETSOCK, which covers IPv4 and IPv6 in one walk through the kernel's socket table; that walk is the main cost.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

_SOCK_DIAG, _GET_TCP = 4, 18  # NETLINK_SOCK_DIAG, TCPDIAG_GETSOCK.
_DUMP, _INFO = 0x301, 2  # NLM_F_REQUEST | NLM_F_DUMP, INET_DIAG_INFO.
_ERROR, _DONE = 2, 3
_LISTENING, _ALL_STATES = 1 << 10, 0xFFF
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port.
_REQUEST = struct.Struct("=3xB48xII")  # inet_diag_req: extensions, states, flags; any family, any socket.
_REPLY_BYTES, _INODE_AT = 72, 68  # inet_diag_msg.
_RECEIVED_AT, _SENT_AT = 128, 200  # In tcp_info: tcpi_bytes_received and, since Linux 4.19, tcpi_bytes_sent.
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class TcpBytes:
    """TCP payload. Retransmitted data counts twice, and the end of a connection counts as one received byte."""

    received: int = 0
    sent: int = 0


class TcpTable:
    """All TCP sockets of this network namespace, as of the last `refresh`."""

    def __init__(self) -> None:
        self.sockets: Mapping[int, TcpBytes] | None = None  # Keyed by inode; None if the kernel does not report them.

    def refresh(self) -> None:
        """Reads the sockets from the kernel, once for all processes."""
        try:
            self.sockets = _sockets()
        except OSError:
            self.sockets = None


class TcpCount:
    """Counts the bytes of one process since the first sample, including sockets that have closed since then."""

    def __init__(self, pid: int, table: TcpTable) -> None:
        self._pid = pid
        self._table = table
        self._first: TcpBytes | None = None
        self.latest: dict[int, TcpBytes] = {}  # Sockets that the process holds.
        self._closed = TcpBytes()  # Sum over closed sockets, so that they cost nothing later.

    def sample(self) -> TcpBytes | None:
        """Returns the bytes as of the table's last refresh; None if unknown, such as for another user's process."""
        sockets = self._table.sockets
        if sockets is None:
            return None
        try:
            held = set(_inodes(self._pid))
        except OSError:
            return None
        now = {inode: sockets[inode] for inode in held if inode in sockets}
        if self._first is None:
            self._first = _sum(now.values())
        self._closed = _sum([self._closed, *(self.latest.pop(inode) for inode in self.latest.keys() - held)])
        self.latest |= now
        total = _sum([self._closed, *self.latest.values()])
        return TcpBytes(total.received - self._first.received, total.sent - self._first.sent)


def _sum(counts: Collection[TcpBytes]) -> TcpBytes:
    return TcpBytes(sum(count.received for count in counts), sum(count.sent for count in counts))


def _sockets() -> dict[int, TcpBytes]:
    counted = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        request = _REQUEST.pack(1 << (_INFO - 1), _ALL_STATES & ~_LISTENING, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _GET_TCP, _DUMP, 1, 0) + request)
        for reply in _replies(kernel):
            info = _tcp_info(reply)
            if len(info) >= _SENT_AT + 8:
                (inode,) = struct.unpack_from("=I", reply, _INODE_AT)
                (received,) = struct.unpack_from("=Q", info, _RECEIVED_AT)
                (sent,) = struct.unpack_from("=Q", info, _SENT_AT)
                counted[inode] = TcpBytes(received, sent)
    return counted


def _replies(kernel: socket.socket) -> Iterator[memoryview]:
    """Yields the bodies of the kernel's reply messages."""
    while True:
        data = memoryview(kernel.recv(_BUFFER_BYTES))
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", data, _HEADER.size)
                raise OSError(-code, os.strerror(-code))
            yield data[_HEADER.size : length]
            data = data[_aligned(length) :]


def _tcp_info(reply: memoryview) -> memoryview:
    """Returns the attribute `tcp_info` of a reply; empty if it has none."""
    attributes = reply[_REPLY_BYTES:]
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _INFO:
            return attributes[4:length]
        attributes = attributes[_aligned(length) :]
    return attributes


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _inodes(pid: int) -> Iterator[int]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 (pathlib takes longer than the sampling itself)
        with suppress(OSError):  # The descriptor may have been closed.
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 (the same)
            if target.startswith("socket:["):
                yield int(target[8:-1])
