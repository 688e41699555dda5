"""How many bytes of TCP a process received and sent, from the kernel's own account of its sockets.

The kernel is asked by its socket diagnosis (`man 7 sock_diag`, `linux/inet_diag.h`, `linux/tcp.h`): what `ss -ti` prints,
at a fifth of what starting `ss` every second costs the processor. The older form of the question is put, TCPDIAG_GETSOCK:
it takes one walk through the kernel's table of sockets for IPv4 and IPv6 together, and the walk is what costs.
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
_QUESTION = struct.Struct("=3xB48xII")  # inet_diag_req: extensions, states, flags; any family, any socket.
_ANSWER_BYTES, _INODE_AT = 72, 68  # inet_diag_msg.
_RECEIVED_AT, _SENT_AT = 128, 200  # In tcp_info: tcpi_bytes_received and, since Linux 4.19, tcpi_bytes_sent.
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class TcpBytes:
    """Payload of TCP; what was sent twice counts twice, and the end of a connection as one byte received."""

    received: int = 0
    sent: int = 0


class TcpTable:
    """All sockets of this network namespace as of the last `refresh`."""

    def __init__(self) -> None:
        self.sockets: Mapping[int, TcpBytes] | None = None  # By inode; None where the kernel does not tell.

    def refresh(self) -> None:
        """Ask the kernel; one question serves all processes."""
        try:
            self.sockets = _sockets()
        except OSError:
            self.sockets = None


class TcpCount:
    """The bytes of one process since the first look, its sockets that closed included as far as they were seen."""

    def __init__(self, pid: int, table: TcpTable) -> None:
        self._pid = pid
        self._table = table
        self._begun: TcpBytes | None = None
        self._latest: dict[int, TcpBytes] = {}  # Of the sockets it holds.
        self._closed = TcpBytes()  # Of all that it held: a broker's visitors must not cost a look each for ever.

    def look(self) -> TcpBytes | None:
        """The bytes as of the table's last refresh; None where they cannot be told, as of another user's process."""
        sockets = self._table.sockets
        if sockets is None:
            return None
        try:
            held = set(_inodes(self._pid))
        except OSError:
            return None
        now = {inode: sockets[inode] for inode in held if inode in sockets}
        if self._begun is None:
            self._begun = _sum(now.values())
        self._closed = _sum([self._closed, *(self._latest.pop(inode) for inode in self._latest.keys() - held)])
        self._latest |= now
        total = _sum([self._closed, *self._latest.values()])
        return TcpBytes(total.received - self._begun.received, total.sent - self._begun.sent)


def _sum(counts: Collection[TcpBytes]) -> TcpBytes:
    return TcpBytes(sum(count.received for count in counts), sum(count.sent for count in counts))


def _sockets() -> dict[int, TcpBytes]:
    counted = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        question = _QUESTION.pack(1 << (_INFO - 1), _ALL_STATES & ~_LISTENING, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _GET_TCP, _DUMP, 1, 0) + question)
        for answer in _answers(kernel):
            info = _tcp_info(answer)
            if len(info) >= _SENT_AT + 8:
                (inode,) = struct.unpack_from("=I", answer, _INODE_AT)
                (received,) = struct.unpack_from("=Q", info, _RECEIVED_AT)
                (sent,) = struct.unpack_from("=Q", info, _SENT_AT)
                counted[inode] = TcpBytes(received, sent)
    return counted


def _answers(kernel: socket.socket) -> Iterator[memoryview]:
    """The bodies of the messages that the kernel answers with, to the last."""
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


def _tcp_info(answer: memoryview) -> memoryview:
    """The attribute that holds `tcp_info`; empty where there is none."""
    attributes = answer[_ANSWER_BYTES:]
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
    for name in os.listdir(folder):  # noqa: PTH208 (a Path a descriptor costs more than the look itself)
        with suppress(OSError):  # Closed in the meantime.
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 (the same)
            if target.startswith("socket:["):
                yield int(target[8:-1])
