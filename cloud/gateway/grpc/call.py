"""A gRPC call as its service sees it, whatever the message."""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote

import grpc

from cloud.gateway.common.auth import Authenticator
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Asked, Reply, server_timing
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import FrameMessage, ResultMessage, pack_result, unpack_frame

FRAME_KEY = "skylane-frame-bin"  # A vehicle's frame message without its data, and
MASK_KEY = "skylane-mask-bin"  # the mask message without its, behind the answer.
VEHICLE_KEY = "skylane-vehicle"
TIMING_KEY = "server-timing"
_LONGEST_MS = 86_400_000


@dataclass(frozen=True)
class GrpcCall:
    """The bytes of a request and what came with them."""

    data: Buffer
    received_ns: int
    context: grpc.ServicerContext = field(repr=False)

    @cached_property
    def metadata(self) -> Mapping[str, str | bytes]:
        """The caller's metadata by key in lower case; bytes where the key ends in `-bin`."""
        return dict(self.context.invocation_metadata())

    @property
    def host(self) -> str:
        """The caller's address, without its port."""
        address = unquote(self.context.peer()).partition(":")[2]  # Such as ipv4:127.0.0.1:5000 or ipv6:[::1]:5000.
        return address.rpartition(":")[0].strip("[]") or "unknown"

    def text(self, key: str) -> str | None:
        """A value of the metadata; None where there is none, or one of bytes."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    @cached_property
    def frame(self) -> FrameMessage | None:
        """A vehicle's frame message without data.

        Raises:
            RefusedError: what is there is none.
        """
        packed = self.metadata.get(FRAME_KEY)
        if not isinstance(packed, bytes):
            return None
        try:
            return unpack_frame(packed)
        except MessageError as error:
            raise RefusedError(Kind.INVALID, f"{FRAME_KEY}: {error}") from error

    @property
    def budget_ms(self) -> int | None:
        """The time that the caller's deadline leaves; None without one."""
        left_s = self.context.time_remaining()
        return None if left_s is None or left_s * 1000 > _LONGEST_MS else max(0, int(left_s * 1000))

    def caller(self, callers: Authenticator, claimed: str | None = None) -> str:
        """Who calls; `claimed` by the message itself, else by metadata.

        Raises:
            RefusedError: it has no token, or may not speak by that name.
        """
        if claimed is None and (told := self.metadata.get(VEHICLE_KEY)) is not None:
            claimed = told if isinstance(told, str) else told.decode(errors="replace")
        return callers.name(self.text("authorization"), claimed, self.host)

    def admit(self, callers: Authenticator) -> None:
        """Check the token alone, before the message has come: a stranger's is not waited for.

        Raises:
            RefusedError: it has none, or none of this worker's.
        """
        callers.name(self.text("authorization"), None, self.host)

    def when_over(self, cancel: Callable[[], object]) -> None:
        """Registers `cancel` to be called when the call ends."""

        def ended() -> None:
            cancel()

        if not self.context.add_callback(ended):  # The call has ended already.
            cancel()

    def reply(self, asked: Asked) -> Reply:
        """Wait for what was asked, and tell of it behind the answer; where the caller goes, its pictures are let go.

        Raises:
            RefusedError: as `Asked.reply`, or nobody waits any more.
        """
        self.when_over(asked.cancel)
        try:
            reply = asked.reply()
        except CancelledError as error:
            raise RefusedError(Kind.LATE, "the caller's deadline has passed") from error
        self._tell(reply.first, is_vehicle=asked.is_vehicle)
        return reply

    def _tell(self, message: ResultMessage, *, is_vehicle: bool) -> None:
        """Send the worker's stages behind the answer, and to a vehicle what its mask message holds beside the data."""
        trailing: list[tuple[str, str | bytes]] = [(TIMING_KEY, server_timing(message))]
        if is_vehicle:
            trailing.append((MASK_KEY, pack_result(message)))
        self.context.set_trailing_metadata(tuple(trailing))
