"""`skylane model`: build, inspect, list, run and evaluate models."""

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cloud.engines.engine import Placement
from cloud.models.repository import Repository, default_root
from modelling.bench_cli import bench, verify
from modelling.conversion.convert_cli import convert_model
from modelling.quantization.quantize_cli import quantize
from modelling.recipes import RECIPES, Format, Recipe
from modelling.tables import evaluation_line, evaluation_table, model_rows, models_table, result_table, told
from shared.flags import FiniteRange
from shared.imaging.bayer import DEMOSAIC_METHODS
from shared.imaging.image_files import read_image_file
from shared.imaging.labels import Labels, read_labels
from shared.messages.topics import checked
from shared.package_data import shipped
from shared.terminal_table import Table

if TYPE_CHECKING:
    from modelling.training.weights import Weights

_STREET = shipped("configs") / "labels" / "street12.yaml"

_models = click.option(
    "--models", "root", type=click.Path(file_okay=False, path_type=Path), help="The model repository. [your own]"
)
_device = click.option("--device", default="auto", show_default=True, help="auto, cpu or gpu:N.")
_demosaic = click.option(
    "--demosaic", type=click.Choice(sorted(DEMOSAIC_METHODS)), default="binning", show_default=True
)


class _Size(click.ParamType):  # type: ignore[type-arg]  # Its parameter is not there at run time in all of click 8.
    """Height and width in pixels, as 608x968."""

    name = "HxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse it, or fail as bad usage."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([1-9][0-9]{0,4})[x×]([1-9][0-9]{0,4})", str(value))
        if match is None:
            self.fail(f"{value!r} is no size: write height, x, width, as 608x968", param, ctx)
        return int(match[1]), int(match[2])


@click.group()
def model() -> None:
    """Build, inspect, list, run and evaluate models."""


model.add_command(bench)
model.add_command(quantize)
model.add_command(verify)
model.add_command(convert_model)


@model.command("list")
@_models
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def list_models(root: Path | None, *, as_json: bool) -> None:
    """List the models of the repository, and whether their files are what their manifests say."""
    repository = Repository(root or default_root())
    rows = model_rows(repository)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        Console().print(models_table(rows, f"Models in {repository}"))
    else:
        click.echo(f"{repository} holds no model: `skylane model build road-small` makes one")


@model.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice(sorted(RECIPES)))
@click.option("--train", is_flag=True, help="Train its weights on the synthetic drive first; takes hours on a CPU.")
@click.option("--minutes", type=FiniteRange(min=0, min_open=True), help="End the training by then.")
@click.option("--steps", type=click.IntRange(min=1), help="Of the training.")
@click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), help="Of the training, or of random weights.")
@click.option(
    "--work", type=click.Path(file_okay=False, path_type=Path), help="For frames and checkpoints. [runs/training]"
)
@click.option("--untrained", is_flag=True, help="Take random weights, whatever ships; every picture will say so.")
@click.option(
    "--labels", type=click.Path(dir_okay=False, path_type=Path), default=_STREET, help="Of the twelve classes."
)
@click.option(
    "--format",
    "form",
    type=click.Choice([each.value for each in Format]),
    help="Build this format alone. [all of the model's]",
)
@click.option("--name", "called", metavar="NAME", help="Call the model so; with --format, and one NAME.")
@click.option("--free-batch", is_flag=True, help="Any number of pictures may go through it at once, instead of one.")
@click.option(
    "--weights-from",
    "source",
    type=click.Path(file_okay=False, path_type=Path),
    help="The repository that holds the shipped weights. [the same]",
)
@_models
def build(
    names: tuple[str, ...],
    root: Path | None,
    *,
    train: bool,
    untrained: bool,
    form: str | None,
    called: str | None,
    free_batch: bool,
    source: Path | None,
    labels: Path,
    work: Path | None,
    seed: int | None,
    **course: Any,
) -> None:
    """Build models into the repository: from the weights that ship, or random ones where none do, or trained now."""
    if train and untrained:
        raise click.UsageError("--train and --untrained exclude each other")
    if called is not None and (form is None or len(names) > 1):
        raise click.UsageError("--name calls one model in one format: give --format, and one NAME")
    import_module("cloud.engines.tensorflow.library")  # First, as it imports TensorFlow quietly.
    from modelling import building  # noqa: PLC0415  TensorFlow takes seconds, and `list` needs none.

    repository, street = root or default_root(), read_labels(labels)
    for name in names:
        recipe = RECIPES[name] if seed is None else replace(RECIPES[name], seed=seed)
        weights = None
        if train:
            given = {key: value for key, value in {**course, "seed": seed}.items() if value is not None}
            weights = _train(recipe, work or Path("runs/training") / name, source or repository, street, given)
        elif untrained:
            recipe = replace(recipe, trained=False)
        for folder in building.build(
            recipe,
            repository,
            street,
            weights,
            None if form is None else (Format(form),),
            name=called and checked("model", called),
            source=source,
            free_batch=free_batch,
        ):
            click.echo(f"built {folder}")


@model.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--write", "folder", type=click.Path(file_okay=False, path_type=Path), help="Make this model's folder.")
@click.option("--labels", type=click.Path(dir_okay=False, path_type=Path), help="A label file, YAML or SLabel XML.")
@click.option("--size", type=_Size(), help="The input's height and width, where the graph leaves them open.")
@click.option("--signature", default="serving_default", show_default=True, help="Of a SavedModel.")
@click.option("--untrained", is_flag=True, help="Its weights are random: every picture made with it will say so.")
@click.option("--force", is_flag=True, help="Write the manifest anew where there is one.")
def inspect(
    file: Path,
    folder: Path | None,
    labels: Path | None,
    size: tuple[int, int] | None,
    signature: str,
    *,
    untrained: bool,
    force: bool,
) -> None:
    """Find out how to feed and read a model's FILE, and write its manifest.

    FILE is a frozen graph (.pb), a SavedModel's or OpenVINO's folder, or a file of Keras, ONNX or TensorFlow Lite. It is run
    once: inspect only files that you trust.
    """
    from modelling.inspection import inspection  # noqa: PLC0415  As in `build`.

    found = inspection.inspect(
        file,
        labels=read_labels(labels) if labels else None,
        size=size,
        signature=signature,
        trained=not untrained,
    )
    console = Console()
    table = Table(title=str(found.path), show_header=False)
    picture, answer, manifest = found.ends.picture, found.ends.answer, found.manifest
    table.add_row("format", manifest.format)
    table.add_row("input", str(picture))
    table.add_row(
        "fed as",
        f"{manifest.input.height}×{manifest.input.width} {manifest.input.layout}, scale {manifest.input.scale:g}",
    )
    table.add_row("output", f"{answer}, {found.ends.kind}")
    if found.ends.boxes is not None:
        table.add_row("boxes", str(found.ends.boxes))
    table.add_row("classes", told(found.ends.classes))
    table.add_row("SHA-256", manifest.sha256)
    console.print(table)
    for note in found.notes:
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
    if folder is None:
        click.echo(f"\n{manifest.to_yaml()}\n--write models/NAME makes the model's folder with this as its model.yaml.")
    else:
        click.echo(f"wrote {inspection.write(found, folder, replace=force)}")


@model.command()
@click.argument("name", metavar="MODEL")
@click.argument("image", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where to write. [.]")
@_models
@_device
def run(name: str, image: Path, out: Path, root: Path | None, device: str) -> None:
    """Run MODEL on an IMAGE (JPEG or PNG), without any broker: what it answers as text and as PNG files."""
    from modelling.inspection import image_run  # noqa: PLC0415  As in `build`.

    rgb = read_image_file(image)
    with Repository(root or default_root()).load(name, Placement(device=device)) as loaded:
        tried = image_run.run(loaded, rgb)
        click.echo(f"{loaded.describe()}: {tried.took_ms:.1f} ms warm")
    Console().print(result_table(tried.result, tried.card))
    click.echo("\n".join(f"wrote {path}" for path in image_run.write(tried, rgb, out, image.stem)))


@model.command()
@click.argument("name", metavar="MODEL")
@click.argument("bag", type=click.Path(path_type=Path))
@click.option("--topic", help="The camera's image topic. [the first with labels beside it]")
@click.option("--frames", type=click.IntRange(min=1), help="Judge at most so many. [all]")
@click.option("--truth", metavar="CLASS", help="What all of the bag's frames are; for a classifier.")
@_demosaic
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON, with the whole confusion table.")
@_models
@_device
def evaluate(
    name: str,
    bag: Path,
    *,
    topic: str | None,
    frames: int | None,
    truth: str | None,
    demosaic: str,
    root: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Compare what MODEL answers with a BAG's true labels or boxes, or with what --truth says of its frames.

    Of a segmentation: mean IoU, pixel accuracy, IoU by class, confusion. Of a detector: average precision, recall and
    precision by class and size. Of a classifier: accuracy.
    """
    from modelling.evaluation.dispatch import judged  # noqa: PLC0415  As in `build`.

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Repository(root or default_root()).load(name, Placement(device=device)) as loaded,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task(f"{name} on {bag.name}", total=frames)
        result = judged(
            loaded,
            bag,
            truth=truth,
            camera=topic,
            frames=frames,
            demosaic=demosaic,
            on_frame=lambda done, of: progress.update(task, completed=done, total=of),
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    Console().print(evaluation_table(result, f"{name} on {bag}"))
    click.echo(evaluation_line(result))


def _train(recipe: Recipe, folder: Path, source: Path, labels: Labels, course: dict[str, Any]) -> "Weights":
    """Train a recipe's weights and fold them, with a progress bar; `source`: the repository with the donor's weights."""
    from modelling.training import dispatch  # noqa: PLC0415  As in `build`.

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{recipe.name}: rendering the drive", total=1.0)
        return dispatch.train(
            recipe,
            folder,
            course,
            lambda done, told: progress.update(task, completed=done, description=told),
            source=source,
            labels=labels,
        )
