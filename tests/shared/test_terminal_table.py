import re
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from analysis.report.cli import report
from ops.study.cli import study
from shared.terminal_table import Table
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study

ROOT = Path(__file__).parents[2]
_HEADINGS = ("configuration", "throughput", "utilisation", "outcomes", "remarks of the run")
_ROW = ("frozen_graph.jpeg", "1,234,567.89", "98.765%", "answered 21, dropped 3", "no further remarks")


def _rendered(width: int, *, title: str = "") -> str:
    table = Table(*_HEADINGS, title=title, caption="a caption")
    for _ in range(3):
        table.add_row(*_ROW)
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_word_and_no_number_is_broken_at_any_width(width: int) -> None:
    """Columns that do not fit follow below."""
    text = _rendered(width, title="A table whose title is longer than the table is wide, as they often are")
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in " ".join((*_HEADINGS, *_ROW)).split():
        assert word in text, word
    assert text.index("A table") < text.index("configuration") < text.index("a caption")


def test_each_part_repeats_the_first_column() -> None:
    """A value needs the name of its row."""
    assert _rendered(200).count("configuration") == 1
    narrow = _rendered(40)
    assert narrow.count("configuration") > 1
    assert narrow.count("frozen_graph.jpeg") == 3 * narrow.count("configuration")


def test_a_section_draws_a_line() -> None:
    """The line separates a total from the rows above."""
    table = Table("what", "value")
    table.add_row("a", "1")
    table.add_section()
    table.add_row("total", "1")
    out = StringIO()
    Console(file=out, width=80).print(table)
    lines = out.getvalue().splitlines()
    assert "├" in lines[4]
    assert "total" in lines[5]


def test_all_terminal_tables_use_this_module() -> None:
    """Rich's own tables truncate words on a narrow terminal."""
    packages = ("bench", "cloud", "edge", "modelling", "rosbag_tools", "shared")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    users = {path.relative_to(ROOT).as_posix() for path in sources if "rich.table" in path.read_text(encoding="utf-8")}
    assert users == {"shared/terminal_table.py"}


_COMMANDS = {
    "run": (report, ("{run}",)),
    "comparison": (report, ("{run}", "{other}")),
    "study": (report, ("{study}",)),
    "axes": (study, ("list",)),
}


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_word_in_the_tables_of_a_command_is_broken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow terminal shows every word that a wide one shows."""
    command, flags = _COMMANDS[name]
    folders = {
        "run": write_run(tmp_path / "run", SyntheticRunPlan(frames=30)),
        "other": write_run(tmp_path / "other", SyntheticRunPlan(frames=30, seed=1, session="1" * 12)),
        "study": write_study(tmp_path, frames=30),
    }
    outputs = {}
    for columns in (400, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = CliRunner().invoke(command, [flag.format(**folders) for flag in flags], catch_exceptions=False)
        assert result.exit_code == 0
        outputs[columns] = result.output
    tables = [line for line in outputs[400].splitlines() if "│" in line or "┃" in line]
    words = {word for line in tables for word in re.split(r"[\s│┃]+", line) if word}
    assert len(words) > 10
    assert words <= set(re.split(r"[\s│┃]+", outputs[60]))


def test_a_cell_cannot_control_the_terminal() -> None:
    """The reason of a row may come from a worker, or a whole run from somebody else."""
    table = Table("reason\x1b[2J", title="run\x07")
    table.add_row("lost\x1b]0;owned\x07\nsecond line")
    table.add_row(Text("no\x9banswer"))
    out = StringIO()
    Console(file=out, width=80).print(table)
    assert "second line" in out.getvalue()
    assert not {"\x1b", "\x07", "\x9b"} & set(out.getvalue())
