"""`skylane report`: what a run, several runs or a study measured; as a page, as tables, on the terminal."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from bench.logs.audit import checks
from bench.logs.run_log import load_run
from bench.report.chapters.comparisons.cost import Tariff
from bench.report.content import Report
from bench.report.data.report_input import Subject, open_subject
from bench.report.data.study_log import is_study, run_folders
from bench.report.document import report_of, write_page
from bench.report.output.charts import FiguresError, write_figures
from bench.report.output.json_data import plain
from bench.report.output.table_files import write_tables
from bench.report.output.terminal import show
from shared.flags import FiniteRange
from shared.runlog.repair import repair

_MOST_PROBLEMS = 10
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=_FOLDER)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The HTML file. [RUN/report.html; comparison.html in the first of several]",
)
@click.option("--tables", type=_FOLDER, help="Write tables as CSV, Markdown and LaTeX, and figures as SVG and PNG.")
@click.option("--check", is_flag=True, help="Check every promise of the log; exit code 1 where one does not hold.")
@click.option("--repair", "repairs", is_flag=True, help="Close as `aborted` what a killed run left open.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead; write no page.")
@click.option("--price-per-hour", type=FiniteRange(min=0), help="Of the machine: what do 24 h of footage cost?")
@click.option("--currency", default="EUR", show_default=True, help="Of that price.")
@click.option(
    "--footage-hz", type=FiniteRange(min=0, min_open=True), default=24.0, show_default=True, help="Of the footage."
)
@click.option("--local", type=_FOLDER, help="The same frames, answered on the vehicle itself: is offloading worth it?")
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
    footage_hz: float,
    local: Path | None,
) -> None:
    """Show where the time went and what became of the frames; compare several runs, or the cells of a study.

    RUN is the folder of a run or of a study.
    """
    if repairs:
        for run in runs:
            click.echo(f"{repair(run)} frames of {run} were open and are closed as aborted", err=as_json)
    if check:
        sys.exit(_check(runs))
    console = Console(stderr=as_json)
    tariff = Tariff(price_per_hour, currency, footage_hz) if price_per_hour is not None else None
    subject = open_subject(runs, load_run(local) if local else None)
    made = report_of(subject, tariff)
    if tables:
        _write_files(made, tables, console)
    if as_json:
        click.echo(json.dumps(plain(subject), indent=2, default=str, allow_nan=False))
        return
    _show(subject, made, console)
    path = write_page(made, runs, out)
    console.print(f"{path}  the report; any browser opens it", markup=False, highlight=False, soft_wrap=True)


def _show(subject: Subject, made: Report, console: Console) -> None:
    for shown in show(subject, made):
        console.print(shown, markup=False, highlight=False)
    for problem in subject.problems[:_MOST_PROBLEMS]:
        console.print(f"Not sound: {problem}", markup=False, highlight=False, soft_wrap=True)
    if len(subject.problems) > _MOST_PROBLEMS:
        console.print(f"Not sound: {len(subject.problems) - _MOST_PROBLEMS} more problems; --check names them all")


def _check(runs: Sequence[Path]) -> int:
    """Say of each run, and of each of a study, whether it is sound; the exit code."""
    is_sound = True
    folders = [folder for given in runs for folder in (run_folders(given) if is_study(given) else (given,))]
    for run in folders:
        made = checks(run)
        problems = dict.fromkeys(problem for check in made for problem in check.problems)
        for problem in problems:
            click.echo(str(problem))
        told = "sound" if not problems else f"not sound, {len(problems)} problems"
        click.echo(f"{run}: {told}: {len(load_run(run).frames):,} rows, {len(made)} checks")
        is_sound = is_sound and not problems
    return 0 if is_sound else 1


def _write_files(made: Report, folder: Path, console: Console) -> None:
    """The tables, and the figures where there is a browser to draw them."""
    written = write_tables(made.tables(), folder)
    told = f"{len(written)} files of tables"
    try:
        told += f" and {len(write_figures(made.charts(), folder))} of figures"
    except FiguresError as error:
        console.print(f"{error}; the tables are there without", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{folder}  {told}", markup=False, highlight=False, soft_wrap=True)
