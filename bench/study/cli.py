"""`skylane study`: run a study from its file, and list what can be varied."""

import random
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import click
from rich.console import Console

from bench.study.execution.cell_run import DONE, FAILED, SKIPPED
from bench.study.execution.progress import ProgressBar
from bench.study.execution.runner import Runner
from bench.study.execution.session import Session, session
from bench.study.plan.axes import AXES, Axes, known_values
from bench.study.plan.cell import WorkerSetup
from bench.study.plan.devices import missing
from bench.study.plan.scenarios import SCENARIOS
from bench.study.plan.study_plan import Plan, cells, model_names, read_plan
from bench.study.plan.variants import Variants
from bench.study.results import provenance
from bench.study.results.folder import StudyFolder
from bench.study.results.tables import write_frames, write_runs
from cloud.models.repository import default_root
from shared.errors import SkylaneError
from shared.package_data import shipped
from shared.terminal_table import Table

_models = click.option(
    "--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository. [your own]"
)


@click.group()
def study() -> None:
    """Run studies: every combination of models, engines, codecs, loads and links, several times, into one table."""


@study.command("list")
@_models
def list_axes(models: Path | None) -> None:
    """List the axes of a study, the values that exist of each, and the scenarios."""
    console = Console()
    axes = Table(title="Axes: each takes a value or a list")
    for heading in ("axis", "by default", "values that exist"):
        axes.add_column(heading)
    defaults, known = Axes(), known_values(model_names(models or default_root()))
    for axis in AXES:
        default = getattr(defaults, axis)[0]
        axes.add_row(axis, "" if default is None else str(getattr(default, "name", default)), known[axis])
    console.print(axes)
    scenarios = Table(title="Scenarios")
    for heading in ("scenario", "what it shows", "its result"):
        scenarios.add_column(heading)
    for name, scenario in SCENARIOS.items():
        scenarios.add_row(name, scenario.help, scenario.metric)
    console.print(scenarios)


@study.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Its folder. [runs/studies/<name>]")
@click.option("--seed", type=click.IntRange(min=0, max=(1 << 63) - 1), help="Of the order and the arrivals. [drawn]")
@click.option("--dry-run", is_flag=True, help="Show the runs in their order, and run none.")
@_models
def run(file: Path, out: Path | None, seed: int | None, models: Path | None, *, dry_run: bool) -> None:
    """Run the study of FILE, or go on with it where it stopped; then write its tables and its report.

    FILE is a YAML file, or the name of a study that ships, such as `quick`.
    """
    file = _study_file(file)
    root = models or default_root()
    plan = read_plan(file, root)
    folder = StudyFolder(out or Path("runs") / "studies" / plan.name)
    console = Console()
    variants = Variants(root, folder.models)
    known = folder.known_seed(plan, seed)
    seed = _drawn(seed) if known is None else known
    runner = Runner(plan, folder, seed)
    if dry_run:
        _show(runner, console)
        if known is None:
            console.print(f"in this order with --seed {seed}", highlight=False)
    variants.check(run.cell.setup for run in runner.left)
    if dry_run:
        return
    told = f"{len(cells(plan))} cells, each run {plan.repetitions} times in random order from seed {seed}"
    console.print(f"study {plan.name}: {told}, in {folder.root}", markup=False, highlight=False, soft_wrap=True)
    manifest = provenance.begun(plan, file, seed, len(runner.planned))
    if known is not None:
        manifest["started_ns"] = folder.manifest()["started_ns"]
        console.print(
            f"{runner.done} of {len(runner.planned)} runs are there already: going on with the rest", highlight=False
        )
    folder.begin(plan, manifest)
    sys.exit(_run(runner, variants, console))


def _run(runner: Runner, variants: Variants, console: Console) -> int:
    """Run what is left; whatever ends it, the tables hold what there is. Returns the exit code."""
    plan, folder = runner.plan, runner.folder
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: children end, the folder can be resumed.
    absent = missing(run.cell.device for run in runner.planned)

    def open_session(setup: WorkerSetup) -> AbstractContextManager[Session]:
        return session(plan, setup, variants, folder.root / "workers")

    state = provenance.INTERRUPTED
    try:
        with ProgressBar(console, len(runner.planned), runner.done) as bar:
            runner.run(open_session, absent, bar)
        state = provenance.COMPLETE
    except KeyboardInterrupt:
        console.print(f"interrupted: the same command goes on with it; {folder.root} has what was finished")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Pressed twice, it must not cost the tables.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        results = runner.results()
        found = [result for _, result in results]
        folder.write_manifest(provenance.at_end(folder.manifest(), found, state))
        write_runs(folder, found)
        write_frames(folder, plan.name, ((run.cell, run.repetition, result) for run, result in results))
    ended = provenance.counts(found)
    console.print(f"{ended[DONE]} runs done, {ended[SKIPPED]} skipped, {ended[FAILED]} failed", highlight=False)
    _report(plan, folder, console)
    return 1 if ended[FAILED] else 0


def _report(plan: Plan, folder: StudyFolder, console: Console) -> None:
    """Write the report; a study whose report fails is no lost study."""
    from bench.report.document import write_report  # noqa: PLC0415  Plotly takes a while, and comes last.

    for name in ("runs.csv", "frames.csv", "capacity.csv"):
        if (folder.root / name).is_file():
            console.print(f"{folder.root / name}", markup=False, highlight=False, soft_wrap=True)
    try:
        with console.status("writing the report"):
            path = write_report([folder.root], **plan.report.model_dump())
    except SkylaneError as error:
        click.echo(
            f"skylane: the report was not written: {error}; `skylane report {folder.root}` tries again", err=True
        )
        return
    console.print(f"{path}  any browser opens it, no network needed", markup=False, highlight=False, soft_wrap=True)


def _study_file(given: Path) -> Path:
    """The file, or the study of that name in `configs/studies` where there is no such file."""
    named = shipped("configs") / "studies" / f"{given.name}.yaml"
    return named if len(given.parts) == 1 and not given.exists() and named.is_file() else given


def _drawn(seed: int | None) -> int:
    return random.SystemRandom().randrange(1 << 31) if seed is None else seed


def _show(runner: Runner, console: Console) -> None:
    table = Table(title=f"{len(runner.planned)} runs in their order")
    for heading in ("order", "repetition", "cell", "workers"):
        table.add_column(heading)
    for run in runner.planned:
        setup = run.cell.setup
        workers = (
            f"{setup.workers} × {setup.model}, {setup.engine} {setup.precision}, {setup.device}, batch {setup.batch}"
        )
        table.add_row(str(run.order), str(run.repetition), run.cell.name, workers)
    console.print(table)
