import csv
import io
import math
from pathlib import Path

import pytest

from analysis.report.content import ReportTable
from analysis.report.output.table_files import TablesError, to_csv, to_latex, to_markdown, write_tables
from analysis.statistics.description import IntervalEstimate

HOSTILE = r"50 % of a_b & \c {d} #1 ~ ^2 $5 | <i>"
TABLE = ReportTable(
    "stages",
    "Time by stage, ms: 5 % of all",
    ("stage", "p50 ms", "frames", "note"),
    (("inferred", IntervalEstimate(117.2751134, 116.3, 118.4), 2931, HOSTILE), ("total", math.nan, None, "")),
)


def test_csv_has_plain_numbers_and_a_column_for_each_end_of_an_interval() -> None:
    """Programs read the file: no thousands separators, no dashes, six decimals."""
    first, second = csv.DictReader(io.StringIO(to_csv(TABLE)))
    assert first == {
        "stage": "inferred",
        "p50 ms": "117.275113",
        "p50 ms low": "116.300000",
        "p50 ms high": "118.400000",
        "frames": "2931",
        "note": HOSTILE,
    }
    assert second == {"stage": "total"} | dict.fromkeys(("p50 ms", "p50 ms low", "p50 ms high", "frames", "note"), "")


def test_markdown_escapes_special_characters() -> None:
    """An unescaped bar in a name would start another column."""
    lines = to_markdown(TABLE).splitlines()
    assert lines[2:4] == ["| stage | p50 ms | frames | note |", "| --- | ---: | ---: | --- |"]
    assert lines[4].startswith("| inferred | 117.3 [116.3 to 118.4] | 2,931 | 50 % of a_b")
    assert r"\| &lt;i&gt;" in lines[4]
    assert lines[5] == "| total | – | – |  |"


def test_latex_escapes_special_characters() -> None:
    """An unescaped underscore is an error in LaTeX."""
    text = to_latex(TABLE)
    assert r"\begin{tabular}{lrrl}" in text
    assert r"50 \% of a\_b \& \textbackslash{}c \{d\} \#1 \textasciitilde{} \textasciicircum{}2 \$5" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert r"\caption{Time by stage, ms: 5 \% of all}" in text


def test_every_table_is_written_in_three_formats(tmp_path: Path) -> None:
    """The folder is created if necessary."""
    written = write_tables([TABLE], tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["stages.csv", "stages.md", "stages.tex"]
    assert all(path.read_text(encoding="utf-8") for path in written)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The message suggests another --tables."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TablesError, match="choose another --tables"):
        write_tables([TABLE], tmp_path / "file")


def test_no_cell_of_a_table_is_a_formula() -> None:
    """A spreadsheet would evaluate the text of a hostile worker."""
    table = ReportTable("outcomes", "Outcomes", ("reason", "frames"), (('=HYPERLINK("http://e")', 3), ("a\x1bb", -1)))
    assert to_csv(table).splitlines()[1:] == ['"\'=HYPERLINK(""http://e"")",3', "a b,-1"]
