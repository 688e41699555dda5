"""How long to wait before a broker is tried again."""

import random

_FIRST_S = 0.2
_LONGEST_S = 2.0
_STEADY_S = 5.0  # A connection that held so long was a good one: whatever broke it is new.


class ExponentialBackoff:
    """Waits that are drawn by chance from a range that doubles with each failure ("full jitter").

    Nodes that lost one broker together do not come back together, and whom the broker throws out again at once, because
    another took its client id, does not come back ever faster.
    """

    def __init__(self) -> None:
        self._failures = 0

    def wait_s(self, held_s: float = 0.0) -> float:
        """The next wait, in seconds, after a connection that held for `held_s`; 0: after none at all."""
        self._failures = 0 if held_s >= _STEADY_S else self._failures
        longest_s = min(_LONGEST_S, _FIRST_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)  # Beyond it nothing grows.
        return random.uniform(0.0, longest_s)
