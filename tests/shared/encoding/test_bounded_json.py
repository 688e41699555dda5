"""JSON that a server answers."""

import pytest

from shared.encoding.bounded_json import JsonError, parse


def test_what_is_within_the_bounds_is_read() -> None:
    """As the library reads it."""
    assert parse(memoryview(b'{"a": ["b", 1]}'), 4) == {"a": ["b", 1]}
    assert parse('["Stra\u00dfe"]'.encode(), 4) == ["Stra\u00dfe"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"[" + b"[]," * 100 + b"[]]", "more than 64 values"),
        (b"[" * 1000, "more than 64 values"),
        (b"1" * 100_000, "ValueError"),
        (b"{", "JSONDecodeError"),
        ('["\U0001f600"]'.encode(), "not in ASCII"),
    ],
)
def test_what_would_take_the_memory_is_not(text: bytes, told: str) -> None:
    """Sixty megabytes of empty lists took 1.6 gigabytes of a vehicle's."""
    with pytest.raises(JsonError, match=told):
        parse(text, 64, is_ascii=True)
