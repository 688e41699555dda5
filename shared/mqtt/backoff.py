"""Random waits between connection attempts."""

import random

_INITIAL_S = 0.2
_LONGEST_S = 2.0
_STABLE_S = 5.0  # A connection that lasted this long resets the back-off.


class ExponentialBackoff:
    """Exponential back-off with full jitter: random waits from a range that doubles with each failure.

    The jitter keeps nodes that lost one broker together from reconnecting at the same moment. A client that the broker
    disconnects at once, because another client uses its id, slows down too.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._random = random.Random()  # Not the generator of the process, whose seed may be somebody else's.

    def wait_s(self, held_s: float = 0.0) -> float:
        """Returns the next wait in seconds after a connection that lasted `held_s`; 0 if the attempt failed."""
        self._failures = 0 if held_s >= _STABLE_S else self._failures
        upper_s = min(_LONGEST_S, _INITIAL_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        return self._random.uniform(0.0, upper_s)
