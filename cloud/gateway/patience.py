"""Patience with a caller who speaks and speaks, and says nothing: each word of HTTP/2 takes time from all others."""

import time

from shared.http2 import Code, Http2Error

MOST_WORDS = 10_000  # In _WORDS_S that bring no message, end no call, and let no answer out.

_WORDS_S = 10.0
_EARNED_BYTES = 1_024  # Of answers, for which one word more is borne: who takes them lets out more.
_WORD_BYTES = 256  # A longer one counts as several.


class Patience:
    """That with one connection; for one thread at a time, but for `restore`."""

    def __init__(self) -> None:
        self._words, self._since_s = 0, 0.0
        self._seen_bytes = 0

    def restore(self) -> None:
        """Something has come of it: a message, or the end of a call."""
        self._words = 0

    def bear(self, length: int, sent_bytes: int) -> None:
        """Bear a word of this length; `sent_bytes`: of answers, until now.

        Raises:
            Http2Error: it was one too many.
        """
        now_s = time.monotonic()
        if now_s - self._since_s > _WORDS_S:
            self._words, self._since_s = 0, now_s
        earned, self._seen_bytes = (sent_bytes - self._seen_bytes) // _EARNED_BYTES, sent_bytes
        self._words = max(0, self._words - earned) + 1 + length // _WORD_BYTES
        if self._words > MOST_WORDS:
            raise Http2Error(f"more than {MOST_WORDS} frames in {_WORDS_S:g} s that bring nothing", code=Code.ENOUGH)
