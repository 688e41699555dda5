"""`skylane report`: reports a run, several runs or a study as HTML page, table files, JSON and on the terminal."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from modelling.cli_options import MAP
from shared.errors import MissingExtraError
from shared.flags import FiniteRange
from shared.runlog.repair import repair
from shared.sanitize import printable_lines

if TYPE_CHECKING:
    from analysis.report.content import ReportContent
    from analysis.report.data.report_input import ReportInput

_MAX_PROBLEMS = 10
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=_FOLDER)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="HTML file to write. [RUN/report.html; comparison.html in the first of several]",
)
@click.option("--tables", type=_FOLDER, help="Write tables as CSV, Markdown and LaTeX, and charts as SVG and PNG.")
@click.option("--check", is_flag=True, help="Check the consistency of the log; exit code 1 if a check fails.")
@click.option("--repair", "repairs", is_flag=True, help="Close the open frames of a killed run as `aborted`.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON and write no page.")
@click.option(
    "--price-per-hour", type=FiniteRange(min=0), help="Price of the machine; adds the cost of 24 h of footage at 24 Hz."
)
@click.option("--currency", default="EUR", show_default=True, help="Currency of the price.")
@click.option(
    "--local", type=_FOLDER, help="Run of the same frames with the worker on the vehicle, to compare offloading with."
)
@click.option(
    "--truth",
    "truths",
    multiple=True,
    metavar="BAG",
    type=click.Path(path_type=Path),
    help="Bag with true labels: adds the streaming accuracy at and for the tick (for several runs: once, or once for each run).",
)
@MAP
def report(
    runs: tuple[Path, ...],
    *,
    out: Path | None,
    tables: Path | None,
    check: bool,
    repairs: bool,
    as_json: bool,
    price_per_hour: float | None,
    currency: str,
    local: Path | None,
    truths: tuple[Path, ...],
    map_file: Path | None,
) -> None:
    """Report outcomes and time by stage of a run; compare several runs, or the cells of a study.

    RUN is the folder of a run or of a study.
    """
    if repairs:
        for run in runs:
            click.echo(f"{repair(run)} open frames of {run} closed as aborted", err=as_json)
    from analysis.logs.run_log import load_run  # Importing pandas is slow, and `--help` does not need it.
    from analysis.report.chapters.comparisons.cost import Tariff
    from analysis.report.data.report_input import load_report_input
    from analysis.report.document import report_of, write_page
    from analysis.report.results import report_json

    if check:
        sys.exit(_check(runs))
    console = Console(stderr=as_json)
    tariff = Tariff(price_per_hour, currency) if price_per_hour is not None else None
    source = load_report_input(runs, load_run(local) if local else None, truths, map_file)
    content = report_of(source, tariff)
    if tables:
        _write_files(content, tables, runs[0], console)
    if as_json:
        click.echo(json.dumps(report_json(source), indent=2, default=str, allow_nan=False))
        return
    _show(source, content, console)
    path = write_page(content, runs, out)
    console.print(f"{path}  the report; any browser opens it", markup=False, highlight=False, soft_wrap=True)


def _show(source: "ReportInput", content: "ReportContent", console: Console) -> None:
    from analysis.report.results import terminal_tables  # As in `report`.

    for table in terminal_tables(source, content):
        console.print(table, markup=False, highlight=False)
    for accuracy in source.streaming:
        for caution in filter(None, (accuracy.note, *accuracy.cautions)):
            console.print(printable_lines(f"{accuracy.run}: {caution}"), markup=False, highlight=False, soft_wrap=True)
    for problem in source.problems[:_MAX_PROBLEMS]:
        console.print(printable_lines(f"Problem: {problem}"), markup=False, highlight=False, soft_wrap=True)
    if len(source.problems) > _MAX_PROBLEMS:
        console.print(f"{len(source.problems) - _MAX_PROBLEMS} more problems: use --check to list all of them")


def _check(runs: Sequence[Path]) -> int:
    """Prints the problems of each run, or of each run of a study; returns the exit code."""
    from analysis.logs.audit import run_checks  # As in `report`.
    from analysis.logs.run_log import load_run
    from analysis.report.data.report_input import is_study, run_folders

    exit_code = 0
    folders = [folder for given in runs for folder in (run_folders(given) if is_study(given) else (given,))]
    for run in folders:
        checks = run_checks(run)
        problems = dict.fromkeys(problem for check in checks for problem in check.problems)
        for problem in problems:
            click.echo(str(problem))
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        result = f"not consistent, {count}" if problems else "consistent"
        click.echo(f"{run}: {result}: {len(load_run(run).frames):,} rows, {len(checks)} checks")
        exit_code = 1 if problems else exit_code
    return exit_code


def _write_files(content: "ReportContent", folder: Path, run: Path, console: Console) -> None:
    """Writes the tables and, if kaleido and a browser are installed, the charts."""
    from analysis.report.output.charts import FiguresError, write_figures  # As in `report`.
    from analysis.report.output.table_files import write_tables

    written = f"{len(write_tables(content.tables(), folder, run))} table files"
    try:
        written += f" and {len(write_figures(content.charts(), folder, run))} chart files"
    except (FiguresError, MissingExtraError) as error:
        console.print(f"{error}; only the tables were written", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{folder}  {written}", markup=False, highlight=False, soft_wrap=True)
