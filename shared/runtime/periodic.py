"""Periodic work of a node, such as reports and samples: an exception ends one round of it, never the node."""

from collections.abc import Callable

from shared.logs import RateLimitedLogger, get_logger
from shared.threads import Counts

FAILURES = Counts()  # Rounds of this process that ended with an exception, by the name of the work.

_LOG = RateLimitedLogger(get_logger("periodic"))
_MAX_TRACEBACKS = 20  # Maximum number of tracebacks in the log; later failures have their reason only.


def run_round(work: str, step: Callable[[], object]) -> bool:
    """Runs one round of periodic work; logs and counts its exception. Returns True if there was no exception."""
    try:
        step()
    except Exception as error:  # noqa: BLE001  The next round follows.
        FAILURES.add(work)
        with_traceback = {"exc_info": error} if sum(FAILURES.by_name().values()) <= _MAX_TRACEBACKS else {}
        reason = f"{type(error).__name__}: {error}"
        _LOG.warning(work, "periodic work failed; the next round follows", work=work, reason=reason, **with_traceback)
        return False
    return True
