import re
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.faults.cli import faults
from bench.load.synthetic_run import Plan, write_run
from bench.report.cli import report
from bench.study.cli import study
from shared.terminal_table import Table
from tests.support.synthetic_study import write_study

ROOT = Path(__file__).parents[2]
_HEADINGS = ("configuration", "throughput", "utilisation", "outcomes", "remarks of the run")
_ROW = ("frozen_graph.jpeg", "1,234,567.89", "98.765%", "answered 21, dropped 3", "nothing to be remarked")


def _shown(width: int, *, title: str = "") -> str:
    table = Table(*_HEADINGS, title=title, caption="a caption")
    for _ in range(3):
        table.add_row(*_ROW)
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_word_and_no_number_is_broken_at_any_width(width: int) -> None:
    """A word cut to "answe…" and a number over two lines cannot be read; columns that do not fit follow below."""
    shown = _shown(width, title="A table whose title is longer than the table is wide, as they often are")
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for word in " ".join((*_HEADINGS, *_ROW)).split():
        assert word in shown, word
    assert shown.index("A table") < shown.index("configuration") < shown.index("a caption")


def test_columns_that_do_not_fit_follow_below_with_the_first_column_repeated() -> None:
    """A figure without the name of its row says nothing."""
    assert _shown(200).count("configuration") == 1
    narrow = _shown(40)
    assert narrow.count("configuration") > 1
    assert narrow.count("frozen_graph.jpeg") == 3 * narrow.count("configuration")


def test_sections_are_kept_in_every_part() -> None:
    """The line above a total belongs to it."""
    table = Table("what", "value")
    table.add_row("a", "1")
    table.add_section()
    table.add_row("total", "1")
    out = StringIO()
    Console(file=out, width=80).print(table)
    lines = out.getvalue().splitlines()
    assert "├" in lines[4]
    assert "total" in lines[5]


def test_every_table_on_the_terminal_is_drawn_by_this_module() -> None:
    """A table of Rich's own cuts words where the terminal is narrow."""
    packages = ("bench", "cloud", "edge", "modelling", "rosbag_tools", "shared")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    drawn = {path.relative_to(ROOT).as_posix() for path in sources if "rich.table" in path.read_text(encoding="utf-8")}
    assert drawn == {"shared/terminal_table.py"}


_COMMANDS = {
    "run": (report, ("{run}",)),
    "comparison": (report, ("{run}", "{other}")),
    "study": (report, ("{study}",)),
    "axes": (study, ("list",)),
    "faults": (faults, ("--list",)),
}


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", _COMMANDS)
def test_no_word_of_a_commands_tables_is_broken(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each word of a wide terminal is found again on a narrow one."""
    command, flags = _COMMANDS[name]
    folders = {
        "run": write_run(tmp_path / "run", Plan(frames=30)),
        "other": write_run(tmp_path / "other", Plan(frames=30, seed=1, session="1" * 12)),
        "study": write_study(tmp_path, frames=30),
    }
    said = {}
    for columns in (400, width):
        monkeypatch.setenv("COLUMNS", str(columns))
        ended = CliRunner().invoke(command, [flag.format(**folders) for flag in flags], catch_exceptions=False)
        assert ended.exit_code == 0
        said[columns] = ended.output
    tables = [line for line in said[400].splitlines() if "│" in line or "┃" in line]
    words = {word for line in tables for word in re.split(r"[\s│┃]+", line) if word}
    assert len(words) > 10
    assert words <= set(re.split(r"[\s│┃]+", said[width]))
