"""A study from its file to its report, with its progress on the terminal, or a dry run of it."""

import random
import signal
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from analysis.study import study_folder
from analysis.study.accuracy import accuracy_table, check_accuracy
from analysis.study.axes import NONE
from analysis.study.measurement import DONE, FAILED, INVALID, INVALID_MEANING, SKIPPED, RunResult
from analysis.study.study_folder import StudyFolder
from analysis.study.study_plan import PlannedRun, WorkerSetup, cells, read_plan
from analysis.study.tables import write_frames, write_runs
from ops.study.runner import StudyRunner, missing_devices
from ops.study.session import Session, open_session
from ops.study.variants import ModelVariants
from shared.errors import SkylaneError
from shared.models.repository import Repository
from shared.quiet import is_quiet
from shared.runlog.run_manifest import read_manifest, write_manifest
from shared.terminal_table import result_table

_ESTIMATE_PERIOD_S = 30 * 86_400.0  # Includes all runs in the estimate; a run can be longer than rich's default period.
_CANNOT_RUN = "cannot run"


def run_study(file: Path, root: Path, out: Path | None, seed: int | None, *, dry_run: bool) -> int:
    """Runs or resumes a study with the models in `root`; `dry_run` only shows it. Returns the exit code.

    Raises:
        SkylaneError: The study cannot be run; a failed run is a result.
    """
    plan = read_plan(file, root)
    folder = StudyFolder(out or Path("runs") / "studies" / plan.name)
    console = Console()
    variants = ModelVariants(root, folder.models, makes_missing=not dry_run)
    resumed_seed = folder.resumed_seed(plan, seed)
    if resumed_seed is not None:
        seed = resumed_seed
    elif seed is None:
        seed = random.SystemRandom().randrange(1 << 31)
    runner = StudyRunner(plan, folder, seed)
    pending = [run.cell for run in runner.pending]
    variants.check((cell.setup for cell in pending), {cell.local_model for cell in pending} - {NONE})
    if plan.accuracy:
        check_accuracy(plan, (cell.model for cell in cells(plan)), Repository(root))
    if dry_run:
        if resumed_seed is None:
            console.print(f"use --seed {seed} for this order", highlight=False)
        return _dry_run(runner, variants, console)
    size = f"{len(cells(plan))} cells, {plan.repetitions} repetitions, random order with seed {seed}"
    console.print(f"study {plan.name}: {size}, in {folder.root}", markup=False, highlight=False, soft_wrap=True)
    manifest = study_folder.initial_manifest(plan, file, seed, len(runner.planned))
    if resumed_seed is not None:
        manifest["started_ns"] = read_manifest(folder.root)["started_ns"]
        console.print(f"resuming: {runner.done} of {len(runner.planned)} runs are already done", highlight=False)
    folder.begin(plan, manifest)
    return _run(runner, variants, console)


def _run(runner: StudyRunner, variants: ModelVariants, console: Console) -> int:
    """Runs the pending runs and writes the tables, also after an interruption; returns the exit code."""
    plan, folder = runner.plan, runner.folder
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Handled like Ctrl-C, so that child processes end.
    absent = missing_devices(run.cell.device for run in runner.planned)

    def session_for(setup: WorkerSetup) -> AbstractContextManager[Session]:
        return open_session(plan, setup, variants, folder.root / "workers")

    state = study_folder.INTERRUPTED
    try:
        with ProgressBar(console, len(runner.planned), runner.done) as bar:
            runner.run(session_for, absent, bar)
        state = study_folder.COMPLETE
    except KeyboardInterrupt:
        console.print(f"interrupted: the same command resumes the study; {folder.root} has the finished runs")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C must not interrupt writing the tables.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        saved = runner.results()
        results = [result for _, result in saved]
        write_manifest(folder.root, study_folder.final_manifest(read_manifest(folder.root), results, state))
        runs = write_runs(folder, results)
        write_frames(folder, plan.name, ((run.cell, run.repetition, result) for run, result in saved))
    counts = study_folder.state_counts(results)
    console.print(f"{counts[DONE]} runs done, {counts[SKIPPED]} skipped, {counts[FAILED]} failed", highlight=False)
    if any(result.row.get("validity") == INVALID for result in results):
        console.print(INVALID_MEANING, highlight=False, soft_wrap=True)
    if plan.accuracy:
        console.print(accuracy_table(runs))
    _report(folder, console)
    return 1 if counts[FAILED] else 0


def _report(folder: StudyFolder, console: Console) -> None:
    """Writes the report; an error is printed, because the study itself is complete."""
    from analysis.report.document import write_report  # noqa: PLC0415  Importing Plotly is slow.

    for name in ("runs.csv", "frames.csv", "capacity.csv"):
        if (folder.root / name).is_file():
            console.print(f"{folder.root / name}", markup=False, highlight=False, soft_wrap=True)
    try:
        with console.status("writing the report"):
            path = write_report([folder.root])
    except SkylaneError as error:
        click.echo(
            f"skylane: the report was not written: {error}; run 'skylane report {folder.root}' to try again", err=True
        )
        return
    console.print(f"{path}  any browser opens it, no network needed", markup=False, highlight=False, soft_wrap=True)


def _dry_run(runner: StudyRunner, variants: ModelVariants, console: Console) -> int:
    """Opens the models of the pending runs, and shows the runs and the cells that cannot run; returns the exit code."""
    pending = list(dict.fromkeys(run.cell for run in runner.pending))
    absent = missing_devices(cell.device for cell in pending)

    @cache
    def opened(setup: WorkerSetup, local_model: str) -> str:
        """Returns the engine of the workers, or why a cell cannot run."""
        try:
            return variants.try_open(setup, None if local_model == NONE else local_model)
        except SkylaneError as error:
            return f"{_CANNOT_RUN}: {error}"

    outcomes = {}
    with console.status("opening the models"):
        for cell in pending:
            # Cells that differ only in these open the same model.
            setup = replace(cell.setup, workers=1, fixed_inference_ms=None, cold="")
            reason = absent.get(cell.device)
            outcomes[cell] = opened(setup, cell.local_model) if reason is None else f"{SKIPPED}: {reason}"
    rows = []
    for run in runner.planned:
        setup, (engine, _, _) = run.cell.setup, outcomes.get(run.cell, DONE).partition(":")
        workers = f"{setup.workers} × {setup.model}, {engine}, {setup.device}, batch {setup.batch}"
        rows.append((str(run.order), str(run.repetition), run.cell.name, workers))
    columns = dict.fromkeys(("order", "repetition", "cell", "workers"), "<")
    console.print(result_table(f"{len(rows)} runs in their order", columns, rows))
    for cell, outcome in outcomes.items():
        if outcome.startswith((_CANNOT_RUN, SKIPPED)):
            console.print(f"{cell.name}: {outcome}", markup=False, highlight=False, soft_wrap=True)
    return int(any(outcome.startswith(_CANNOT_RUN) for outcome in outcomes.values()))


class ProgressBar:
    """A ProgressListener that shows a bar, or prints one line per run if the output is not a terminal."""

    def __init__(self, console: Console, planned: int, done: int) -> None:
        self._console = console
        self._planned = planned
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("runs · time left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            disable=is_quiet() or not console.is_terminal,
            speed_estimate_period=_ESTIMATE_PERIOD_S,
        )
        # Runs of an earlier call take no time now and would distort the estimate.
        self._task = self._progress.add_task("", total=planned - done)

    def run_started(self, run: PlannedRun, step: str) -> None:
        """See ProgressListener."""
        description = f"{run.cell.name} #{run.repetition}{f' ({step})' if step else ''}"
        self._progress.update(self._task, description=description)

    def run_finished(self, run: PlannedRun, result: RunResult) -> None:
        """See ProgressListener."""
        self._progress.advance(self._task)
        line = f"{run.order}/{self._planned} {run.cell.name} #{run.repetition}: {_summary(result)}"
        if result.state != DONE or not (is_quiet() or self._console.is_terminal):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _summary(result: RunResult) -> str:
    row = result.row
    if result.state != DONE:
        return f"{result.state}: {row['reason']}"
    value = row.get("metric_value")
    summary = f"{row['metric']} {'not measured' if value is None else f'{value:.4g}'}"
    if row.get("validity") == INVALID:
        return f"{summary}, INVALID by MLPerf's rules: {row['validity_reason']}"
    return f"{summary}, VALID" if row.get("validity") else summary
