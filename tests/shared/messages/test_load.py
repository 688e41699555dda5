from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.load import MAX_REPORT_BYTES, LoadReport, WorkerLoad, pack_load, unpack_load
from shared.messages.msgpack_reader import MAX_ITEMS, MessageError

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
COUNTS = st.integers(0, 1 << 20)
TIMES = st.floats(0, 86_400_000)
LOAD = WorkerLoad(queue=3, free=61, wait_ms=120.5, answer_ms=30.0, spacing_ms=15.0)
REPORT = LoadReport("s1", {"road": LOAD})


@given(
    st.builds(
        LoadReport,
        NAMES,
        st.dictionaries(NAMES, st.builds(WorkerLoad, COUNTS, COUNTS, TIMES, TIMES, TIMES), max_size=4),
    )
)
def test_report_round_trips(report: LoadReport) -> None:
    """Every field is preserved."""
    assert unpack_load(pack_load(report)) == report


def test_largest_report_is_within_the_limit() -> None:
    """A worker with many models must not send what vehicles reject."""
    load = WorkerLoad(1 << 20, 1 << 20, 86_400_000.0, 86_400_000.0, 86_400_000.0)
    report = LoadReport("s" * 64, {f"{number:064}": load for number in range(MAX_ITEMS)})
    assert unpack_load(pack_load(report)) == report


@pytest.mark.parametrize("key", ["queue", "free", "wait_ms", "answer_ms", "spacing_ms"])
@pytest.mark.parametrize(
    "value", [-1, float("nan"), float("inf"), float("-inf"), 1e300, 1 << 63, "3", True, None, [1], {}], ids=str
)
def test_absurd_number_is_rejected_by_name(key: str, value: object) -> None:
    """Vehicles choose a worker by these numbers."""
    with pytest.raises(MessageError, match=key):
        unpack_load(_packed(models={"road": {**_fields()["models"]["road"], key: value}}))


@pytest.mark.parametrize("session", ["", "a/b", "+", "x" * 65, "a\n", 7, None])
def test_invalid_session_is_rejected(session: object) -> None:
    """A report counts only with the session that the worker's status names."""
    with pytest.raises(MessageError, match="'session'"):
        unpack_load(_packed(session=session))


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        (None, "'models': expected a map of up to 256 entries, not None"),
        ([], "'models': expected a map of up to 256 entries, not list of 0"),
        ({"a/b": {}}, "Expected `str` matching regex"),
        ({"road": None}, "Expected `object`, got `null`"),
        ({"road": {"queue": 1}}, "Object missing required field `free`"),
        ({str(number): {} for number in range(257)}, "257 exceeds max_map_len"),
    ],
)
def test_invalid_models_are_rejected(models: object, reason: str) -> None:
    """The number of models is bounded, and each has a valid name and a complete load."""
    with pytest.raises(MessageError, match=reason):
        unpack_load(_packed(models=models))


def test_oversized_report_is_rejected_before_decoding() -> None:
    """A vehicle keeps the report of every worker in memory."""
    with pytest.raises(MessageError, match="a load report of 65537 bytes is over the limit of 65536"):
        unpack_load(bytes(MAX_REPORT_BYTES + 1))


def test_unknown_keys_are_accepted() -> None:
    """A later version may add some, to the report and to each load."""
    later = _packed(models={"road": {**_fields()["models"]["road"], "memory_mb": 3}}, site="north")
    assert unpack_load(later) == REPORT


def _fields() -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(pack_load(REPORT))
    return fields


def _packed(**changes: object) -> bytes:
    packed: bytes = msgpack.packb(_fields() | changes)
    return packed
