import sys
from pathlib import Path

import pytest

from shared.errors import MissingExtraError, UnknownNameError
from shared.registry import Entry, load

TABLE = {"queue": Entry("queue:SimpleQueue", "edge"), "deque": Entry("collections:deque", "edge")}


def test_a_plug_in_is_imported_when_it_is_loaded() -> None:
    """A table may name engines whose libraries are not installed."""
    from collections import deque  # noqa: PLC0415 (compared with the result)

    assert load("thing", TABLE, "deque") is deque


def test_an_unknown_name_suggests_a_similar_one() -> None:
    """It is usually a typing mistake."""
    with pytest.raises(UnknownNameError, match="no thing 'deqeu': did you mean deque"):
        load("thing", TABLE, "deqeu")


def test_a_missing_library_is_reported_with_its_extra() -> None:
    """`ModuleNotFoundError: av` would not say what to install."""
    with pytest.raises(MissingExtraError, match=r"thing 'video' needs nowhere_lib.*skylane\[video\]"):
        load("thing", {"video": Entry("tests_missing_part:Part", "video")}, "video")


@pytest.fixture(autouse=True)
def _part_that_lacks_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests_missing_part.py").write_text("import nowhere_lib.inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("tests_missing_part", None)


def test_a_missing_module_of_the_table_is_a_bug() -> None:
    """It is not a problem of the user's installation."""
    with pytest.raises(ModuleNotFoundError):
        load("thing", {"gone": Entry("gone_altogether:Part", "x")}, "gone")
