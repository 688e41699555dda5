"""`skylane model bench` and `skylane model verify`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cloud.engines.engine import ENGINES, Placement
from cloud.models.repository import Repository, default_root
from shared.messages.model_card import Task
from shared.terminal_table import Table

if TYPE_CHECKING:  # They bring the bags' reader and the engines, which other commands need not.
    from modelling.engine_comparison import Result
    from modelling.verification import Verification

_LABELS = {
    Task.SEGMENTATION: "labels: pixels of its classes; truth: mean IoU by the bag's labels",
    Task.CLASSIFICATION: "labels: frames of its class; off by: the most that a probability is; truth: accuracy",
    Task.DETECTION: "labels: objects that both tell; off by: the most that a number is; truth: mean average precision "
    "by the bag's boxes, from 12 pixels on",
    Task.TENSORS: "labels: numbers within a thousandth of the largest; off by: the most that a number is",
}

_models = click.option(
    "--models", "root", type=click.Path(file_okay=False, path_type=Path), help="The model repository. [your own]"
)
_device = click.option("--device", default="auto", show_default=True, help="auto, cpu or gpu:N.")


class _Numbers(click.ParamType):  # type: ignore[type-arg]  # Its parameter is not there at run time in all of click 8.
    """Whole numbers with commas between, as 1,2,4."""

    name = "N,N"

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse them, or fail as bad usage."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdecimal() and self._least <= int(part) <= 1024 for part in parts):  # noqa: PLR2004
            self.fail(f"{value!r}: give whole numbers from {self._least} to 1024 with commas between", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--engine", "engines", multiple=True, type=click.Choice(list(ENGINES)), help="These alone. [all]")
@click.option("--threads", type=_Numbers(0), default="0", help="Of an engine; 0 lets it choose. [0]")
@click.option("--batch", "batches", type=_Numbers(1), default="1", show_default=True, help="Frames at once.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option(
    "--bag", type=click.Path(exists=True, path_type=Path), help="Frames, with truth beside. [an unseen drive]"
)
@click.option(
    "--frames", type=click.IntRange(1, 1000), default=8, show_default=True, help="That labels are compared on."
)
@click.option("--model-version", "version", metavar="V", help="Of several, this version. [the highest]")
@click.option("--truth", metavar="CLASS", help="What all of the bag's frames are; for a classifier.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
@_models
@_device
def bench(name: str, root: Path | None, *, bag: Path | None, as_json: bool, **how: Any) -> None:
    """Measure every way to run MODEL on this machine: engine, precision, threads, batch.

    Beside its file on each engine that reads it, the models that were converted from it are measured. Ratios are to
    TensorFlow in FP32, one frame at a time, in the same run; labels are held against its labels.
    """
    from modelling import engine_comparison as measuring  # noqa: PLC0415  The bags' reader takes time, and `list` needs none.
    from modelling.evaluation.holdout import WEATHER, holdout_bag  # noqa: PLC0415  As above.

    repository = Repository(root or default_root())
    repository.folder(name)  # Before a drive is rendered for a model that is not there.
    with _progress() as progress:
        task = progress.add_task("rendering an unseen drive", total=how["frames"])
        if bag is None:
            bag = holdout_bag(how["frames"], lambda: progress.advance(task))
            how["truth"] = how["truth"] or WEATHER
        result = measuring.bench(
            repository,
            measuring.Plan(model=name, bag=bag, **how),
            lambda done, of, told: progress.update(task, completed=done, total=of, description=told),
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _print(result, measuring.columns(result))


@click.command()
@click.argument("names", metavar="[MODEL]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@_models
@_device
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], root: Path | None, device: str, *, as_json: bool) -> None:
    """Check MODELs, or all: hash, tensors, two runs alike, labels those of the model they were converted from.

    Ends with exit code 1 where one fails.
    """
    from modelling.verification import verify as verified  # noqa: PLC0415  As in `bench`.

    with Console(stderr=True).status("verifying") as status:
        found = verified(Repository(root or default_root()), names, Placement(device=device), status.update)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
    elif found:
        Console().print(_verified(found))
    else:
        click.echo("the repository holds no model: `skylane model build road-small` makes one")
    if any(each.failure is not None for each in found):
        ctx.exit(1)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _print(result: "Result", lines: Any) -> None:
    heading, *rows = lines
    plan = result.plan
    table = Table(
        title=f"{plan.model}, {plan.rounds} rounds in turn",
        caption=f"ms a run; ratio of frames a second to {result.reference}; {_LABELS[result.task]}",
    )
    for column in heading:
        is_name = column == "engine"
        table.add_column(column, justify="left" if is_name else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for reason in result.refused:
        console.print(f"· not run: {reason}", markup=False, highlight=False, soft_wrap=True)
    if result.unjudged:
        console.print(f"· no accuracy: {result.unjudged}", markup=False, highlight=False, soft_wrap=True)
    facts = result.machine
    versions = ", ".join(f"{engine} {facts[engine]}" for engine in ("tensorflow", "openvino", "onnxruntime"))
    console.print(f"{facts['processor']}, {facts['cores']} cores; {versions}; {plan.bag}", highlight=False)


def _verified(found: "list[Verification]") -> Table:
    table = Table(title="Models")
    for column in ("model", "version", "engine", "labels %", "checks"):
        table.add_column(column)
    for each in found:
        share = "" if each.agreement is None else f"{100 * each.agreement:.4f}"
        told = f"{', '.join(each.checks)}: ok" if each.failure is None else f"FAILED: {each.failure}"
        table.add_row(each.name, each.version, each.engine, share, told)
    return table
