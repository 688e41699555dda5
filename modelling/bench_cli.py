"""`skylane model bench` and `skylane model verify`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from modelling.cli_options import DEVICE, JSON, MODELS, TRUTH, frame_progress
from shared.flags import WholeRange
from shared.inference.table import ENGINES
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.task import task_named
from shared.terminal_table import Table

if TYPE_CHECKING:  # They import the bag reader and the engines, which other commands do not need.
    from modelling.engine_comparison import ModelBenchResult
    from modelling.verification import Verification


class _Numbers(click.ParamType):  # type: ignore[type-arg]  # Not generic at run time in all versions of click 8.
    """Comma-separated whole numbers, such as 1,2,4."""

    name = "N,N"

    def __init__(self, minimum: int) -> None:
        self._minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parses the numbers, or fails with a usage error."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdecimal() and self._minimum <= int(part) <= 1024 for part in parts):  # noqa: PLR2004
            self.fail(f"{value!r}: give whole numbers from {self._minimum} to 1024, separated by commas", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--engine", "engines", multiple=True, type=click.Choice(list(ENGINES)), help="Engine (repeatable). [all]")
@click.option("--threads", type=_Numbers(0), default="0", help="Threads of an engine; 0 lets it choose. [0]")
@click.option("--batch", "batches", type=_Numbers(1), default="1", show_default=True, help="Frames per batch.")
@click.option("--rounds", type=WholeRange(1, 1000), default=10, show_default=True, help="Runs of each variant.")
@click.option(
    "--bag",
    type=click.Path(exists=True, path_type=Path),
    help="Bag with frames and ground truth. [a synthetic drive that was not used for training]",
)
@click.option(
    "--frames",
    type=WholeRange(1, 1000),
    default=8,
    show_default=True,
    help="Number of frames to compare labels on.",
)
@click.option("--model-version", "version", metavar="V", help="Version of the model. [the highest]")
@TRUTH
@JSON
@MODELS
@DEVICE
def bench(name: str, repository: Repository, *, bag: Path | None, as_json: bool, **settings: Any) -> None:
    """Measure every way to run MODEL on this machine: engine, precision, threads, batch.

    The comparison includes every engine that reads the model's file, and the models that were converted from it. Ratios are
    relative to the reference with one frame at a time in the same run, and labels are compared with those of the
    reference: the model that MODEL was converted from, else MODEL itself, by TensorFlow if it reads the format.
    """
    from modelling import engine_comparison  # noqa: PLC0415  Its imports are slow, and `list` needs none.
    from modelling.evaluation.holdout import WEATHER, holdout_bag  # noqa: PLC0415

    has_weathers = WEATHER in repository.find(name).labels().names  # Raises before a drive is rendered.
    with frame_progress() as progress:
        task = progress.add_task("rendering a drive", total=settings["frames"])
        if bag is None:
            bag = holdout_bag(settings["frames"], lambda: progress.advance(task))
            settings["truth"] = settings["truth"] or (WEATHER if has_weathers else None)
        result = engine_comparison.bench(
            repository,
            engine_comparison.ModelBenchPlan(model=name, bag=bag, **settings),
            lambda done, total, text: progress.update(task, completed=done, total=total, description=text),
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _print(result, engine_comparison.table_lines(result))


@click.command()
@click.argument("names", metavar="[MODEL]...", nargs=-1)
@JSON
@MODELS
@DEVICE
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], repository: Repository, device: str, *, as_json: bool) -> None:
    """Check MODELs, or all models: hash, tensors, equal results of two runs, agreement with the source model.

    The exit code is 1 if a model fails.
    """
    from modelling.verification import verify as verify_models  # noqa: PLC0415  As in `bench`.

    with Console(stderr=True).status("verifying") as status:
        results = verify_models(repository, names, Placement(device=device), status.update)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in results], indent=2))
    elif results:
        Console().print(_verification_table(results))
    else:
        click.echo("the repository holds no model: `skylane model build road-small` makes one")
    if any(each.failure is not None for each in results):
        ctx.exit(1)


def _print(result: "ModelBenchResult", lines: Any) -> None:
    heading, *rows = lines
    plan = result.plan
    table = Table(
        title=f"{plan.model}, {plan.rounds} rounds in turn",
        caption=f"ms per run; ratio of frames per second to {result.reference}; {task_named(result.task).comparison}",
    )
    for column in heading:
        table.add_column(column, justify="left" if column == "engine" else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for reason in result.refused:
        console.print(f"· not run: {reason}", markup=False, highlight=False, soft_wrap=True)
    if result.unjudged:
        console.print(f"· no accuracy: {result.unjudged}", markup=False, highlight=False, soft_wrap=True)
    machine = result.machine
    versions = ", ".join(f"{engine} {machine[engine]}" for engine in ("tensorflow", "openvino", "onnxruntime"))
    console.print(f"{machine['processor']}, {machine['cores']} cores; {versions}; {plan.bag}", highlight=False)


def _verification_table(results: "list[Verification]") -> Table:
    table = Table(title="Models")
    for column in ("model", "version", "engine", "labels %", "checks"):
        table.add_column(column)
    for each in results:
        share = "" if each.agreement is None else f"{100 * each.agreement:.4f}"
        checks = f"{', '.join(each.checks)}: ok" if each.failure is None else f"FAILED: {each.failure}"
        table.add_row(each.name, each.version, each.engine, share, checks)
    return table
