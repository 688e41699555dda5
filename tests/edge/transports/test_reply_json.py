import pytest

from edge.transports.channel import JsonError, parse_json


def test_json_within_the_limit_is_parsed() -> None:
    """The result is that of the json module."""
    assert parse_json(memoryview(b'{"a": ["b", 1]}'), 4) == {"a": ["b", 1]}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[" + b"[]," * 100 + b"[]]", "more than 64 values"),
        (b"[" * 1000, "more than 64 values"),
        (b"1" * 100_000, "ValueError"),
        (b"{", "JSONDecodeError"),
        ('["\U0001f600"]'.encode(), "not in ASCII"),
    ],
)
def test_json_that_needs_much_memory_is_rejected(text: bytes, error: str) -> None:
    """60 MB of empty lists took 1.6 GB of memory."""
    with pytest.raises(JsonError, match=error):
        parse_json(text, 64)
