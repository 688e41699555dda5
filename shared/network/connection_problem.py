"""Why a node cannot connect to its broker: the kind of problem, its cause and its remedy."""

from enum import StrEnum

from shared.errors import SkylaneError


class ProblemKind(StrEnum):
    """What prevents a connection, as far as one side can see it."""

    UNREACHABLE = "unreachable"  # Nothing listens there, or the connection breaks.
    NO_REPLY = "no reply"  # It accepts the TCP connection and says nothing.
    NEEDS_TLS = "needs TLS"  # It speaks TLS on that port.
    HAS_NO_TLS = "has no TLS"
    UNTRUSTED = "untrusted"  # This node does not trust the broker's certificate.
    OWN_CERTIFICATE = "own certificate"  # The broker does not accept this node's certificate, or gets none.
    EXPIRED_BY_BROKER = "expired by the broker"  # The broker says that this node's certificate has expired.
    LOGIN = "login"  # The broker refuses the user, the password or the name.
    LACKS_FEATURE = "lacks a feature"  # The broker is set up without something that Skylane requires.


class ConnectionProblemError(SkylaneError):
    """A connection to a broker is impossible; the message is the cause and the remedy."""

    def __init__(self, kind: ProblemKind, cause: str, remedy: str) -> None:
        self.kind = kind
        self.cause = cause
        super().__init__(f"{cause}: {remedy}")
