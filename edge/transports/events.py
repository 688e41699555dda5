"""Events of a transport for the vehicle node: faults, and the loss of the vehicle's name."""

from collections.abc import Callable

from shared.errors import SkylaneError


class TransportEvents:
    """Collects events until the node asks for them. Any thread may report one, also before the node exists."""

    def __init__(self) -> None:
        self.reconnected: Callable[[], None] = lambda: None  # Called when the bus has connected, first or again.
        self.faults: list[BaseException] = []  # Exceptions in callbacks of the transport; the run is aborted.
        self.end_reason: SkylaneError | None = None  # Why the run must end early, in an orderly way.

    def connected(self) -> None:
        """Reports that the bus has connected, for the first time or again."""
        self.reconnected()

    def fault(self, error: BaseException) -> None:
        """Reports an exception in a callback of the transport."""
        self.faults.append(error)

    def give_up(self, reason: SkylaneError) -> None:
        """Reports that the run must end."""
        self.end_reason = reason

    def check(self) -> None:
        """Raises the first exception that was reported, or else the reason to end, if there is one."""
        for error in (*self.faults[:1], self.end_reason):
            if error is not None:
                raise error
