"""Counts and logs of unexpected exceptions; each of them fails only the request that caused it."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import ParamSpec

from shared import clock
from shared.logs import get_logger

P = ParamSpec("P")

UNHEALTHY_ERRORS = 10  # Errors within one minute from which the worker reports itself unhealthy.

_MINUTE_NS = 60_000_000_000
_MAX_LOGGED = 20  # Tracebacks written to the log in one minute; further errors are only counted.
_LOG = get_logger("cloud")


class RequestErrors:
    """Counts unexpected exceptions by stage and logs their tracebacks. Thread-safe.

    Known errors of a request are `SkylaneError`s and are not recorded here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._recent_ns: deque[int] = deque(maxlen=max(UNHEALTHY_ERRORS, _MAX_LOGGED))  # Times of the last errors.

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of errors since the worker started, by stage."""
        with self._lock:
            return dict(self._counts)

    @property
    def is_healthy(self) -> bool:
        """True if fewer than `UNHEALTHY_ERRORS` occurred within the last minute."""
        with self._lock:
            return self._within_minute(clock.now_ns()) < UNHEALTHY_ERRORS

    def record(self, stage: str, error: Exception) -> None:
        """Counts an error and logs its traceback. `stage` is the part of the worker that raised it."""
        now_ns = clock.now_ns()
        with self._lock:
            self._counts[stage] += 1
            is_logged = self._within_minute(now_ns) < _MAX_LOGGED
            self._recent_ns.append(now_ns)
        if is_logged:
            _LOG.error("unexpected error, only this request fails", stage=stage, exc_info=error)

    def guarded(self, stage: str, handler: Callable[P, None]) -> Callable[P, None]:
        """Wraps a handler so that exceptions are recorded and not raised."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                handler(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  One message must not stop the worker.
                self.record(stage, error)

        return call

    def _within_minute(self, now_ns: int) -> int:
        return sum(now_ns - at_ns < _MINUTE_NS for at_ns in self._recent_ns)
