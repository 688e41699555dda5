"""How long a caller is borne with that speaks without saying anything."""

import pytest

from cloud.gateway.patience import MOST_WORDS, Patience
from shared.http2 import Http2Error

WINDOW_BYTES = 4


def bear(patience: Patience, count: int, length: int) -> None:
    """So many words in a row."""
    for _ in range(count):
        patience.bear(length, 0)


def test_words_without_end_are_not_borne() -> None:
    """But as many as may be, again and again, where something comes of them."""
    patience = Patience()
    for _ in range(3):
        bear(patience, MOST_WORDS - 1, WINDOW_BYTES)
        patience.restore()
    with pytest.raises(Http2Error):
        bear(patience, MOST_WORDS + 1, WINDOW_BYTES)


def test_who_takes_an_answer_may_say_so_as_often_as_it_likes() -> None:
    """A word for each frame that it has read, of an answer of gigabytes."""
    patience = Patience()
    for number in range(3 * MOST_WORDS):
        patience.bear(WINDOW_BYTES, number << 12)


def test_long_words_count_as_many() -> None:
    """A header list of nothing but changes of the table takes as long as hundreds of calls."""
    patience = Patience()
    with pytest.raises(Http2Error):
        bear(patience, MOST_WORDS // 200, 1 << 16)
