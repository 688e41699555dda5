import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import MissingExtraError, UnknownNameError
from shared.registry import Entry, PluginError, PluginTable, load

Register = Callable[..., PluginTable[Entry]]
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


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Register:
    """Installs distributions with entry points of a new group, and returns a table of that group with one built-in row."""
    group = f"tests.{tmp_path.name}"

    def make(**distributions: str) -> PluginTable[Entry]:
        for name, lines in distributions.items():
            folder = tmp_path / f"{name}-1.2.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
            (folder / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return PluginTable("thing", group, Entry, {"queue": TABLE["queue"]})

    return make


def test_a_plug_in_of_another_distribution_is_found_by_its_name(register: Register) -> None:
    """It is listed before it is imported."""
    from fractions import Fraction  # noqa: PLC0415  Compared with the result.

    table = register(numbers="fraction = fractions:Fraction\nlost = nowhere_lib:Thing")
    assert table.names() == ("queue", "fraction", "lost")
    assert "lost" in table
    assert list(table) == ["queue"]
    assert load("thing", table, "fraction") is Fraction
    with pytest.raises(UnknownNameError, match="no thing 'fractoin': did you mean fraction"):
        load("thing", table, "fractoin")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere_lib:Thing", "ModuleNotFoundError: No module named 'nowhere_lib'"),
        ("fractions:Nothing", "AttributeError"),
        ("tests_failing_part:Part", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_refused(
    register: Register, tmp_path: Path, target: str, problem: str
) -> None:
    """The message has its distribution, which the user installed, rather than a traceback."""
    (tmp_path / "tests_failing_part.py").write_text("1 / 0\n")
    table = register(numbers=f"lost = {target}")
    with pytest.raises(PluginError, match=rf"^thing 'lost' of numbers 1\.2 cannot be used: {problem}.*: update or"):
        load("thing", table, "lost")


def test_a_plug_in_with_the_name_of_a_built_in_is_refused(register: Register) -> None:
    """The user could not know which of both runs."""
    table = register(numbers="queue = fractions:Fraction")
    with pytest.raises(
        PluginError, match=r"thing 'queue': numbers 1\.2 registers a plug-in with the name of a built-in"
    ):
        load("thing", table, "queue")


def test_two_plug_ins_of_the_same_name_are_refused(register: Register) -> None:
    """The order of the installation must not decide."""
    table = register(one="part = fractions:Fraction", two="part = decimal:Decimal")
    with pytest.raises(
        PluginError, match=r"thing 'part' is registered by (one|two) 1\.2, (one|two) 1\.2: uninstall all"
    ):
        load("thing", table, "part")
