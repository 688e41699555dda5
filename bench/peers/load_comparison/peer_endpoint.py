"""An endpoint of a peer: a running server and a transport to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.peers.clients.client import Client
from bench.peers.rig.process_tree import ProcessTree


@dataclass(frozen=True, slots=True)
class PeerEndpoint:
    """A running server and a transport to it."""

    server: str  # A name of NAMES.
    way: str
    connect: Callable[[], Client]
    tree: ProcessTree
    over_tcp: bool = True
    is_floor: bool = False  # See Peer.

    @property
    def name(self) -> str:
        """For example "triton grpc"."""
        return f"{self.server} {self.way}"

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Lets its server run within the block and freezes it afterwards."""
        self.tree.thaw()
        try:
            yield
        finally:
            self.tree.freeze()
