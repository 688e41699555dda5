"""`skylane model`: build, inspect, list, run, evaluate, measure and verify models."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console
from rich.markup import escape

from cloud.models.loader import ModelLoader
from modelling.build_cli import build
from modelling.cli_options import DEVICE, JSON, LABELS, MAP, MODELS, TRUTH, frame_progress
from modelling.conversion.convert_cli import convert_model, quantize
from modelling.fetching import fetch
from modelling.fusion.tune_cli import tune_fusion
from modelling.reuse.tune_cli import judge_gate, tune_gate
from modelling.tables import model_rows, models_table, result_table
from shared.flags import WholeRange
from shared.imaging.geometry import Resize
from shared.imaging.image_files import read_image_file
from shared.imaging.labels import Labels
from shared.inference.table import ENGINES
from shared.models.manifest import COLOUR_LAYOUTS, NORMALIZATIONS, AxisOrder, BoxOrder, NoObject, OutputKind, Placement
from shared.models.repository import Repository
from shared.quiet import progress_console
from shared.sanitize import printable_lines
from shared.task import TASKS, task_named
from shared.terminal_table import Table


class _Size(click.ParamType):  # type: ignore[type-arg]  # Not generic at run time in all versions of click 8.
    """Height and width in pixels, such as 608x968."""

    name = "HxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parses the size, or fails with a usage error."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([1-9][0-9]{0,4})[x×]([1-9][0-9]{0,4})", str(value))
        if match is None:
            self.fail(f"{value!r} is not a size: write height, x, width, as 608x968", param, ctx)
        return int(match[1]), int(match[2])


def _choice(values: Iterable[str]) -> click.ParamType:  # type: ignore[type-arg]  # As above.
    return click.Choice([str(each) for each in values])


@click.group()
def model() -> None:
    """Build, inspect, list, run and evaluate models."""


for each in (build, fetch, quantize, convert_model, tune_gate, judge_gate, tune_fusion):
    model.add_command(each)


@model.command("list")
@MODELS
@JSON
def list_models(repository: Repository, *, as_json: bool) -> None:
    """List the models of the repository, and check their files. A file must have the hash of its manifest."""
    rows = model_rows(repository)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        Console().print(models_table(rows, f"Models in {repository}"))
    else:
        click.echo(f"{repository} holds no model: `skylane model build road-small` makes one")


@model.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--write", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write the model's folder here."
)
@click.option("--labels", **LABELS)
@click.option(
    "--size", type=_Size(), help="Height and width of the input, for a model that accepts any size or declares none."
)
@click.option("--signature", help="Signature of a SavedModel. [serving_default, or the only one]")
@click.option("--task", type=_choice(TASKS), help="Task of the model. [by its outputs]")
@click.option("--output", help="Name of the output of pixels or an image, if a model has several. [by names and kinds]")
@click.option("--output-kind", type=_choice(OutputKind), help="Content of the mask or the scores. [by the graph]")
@click.option("--layout", type=_choice(COLOUR_LAYOUTS), help="Colour order of the input. [rgb8]")
@click.option("--resize", type=_choice(Resize), help="How an image of another aspect ratio is fitted. [crop]")
@click.option("--normalize", type=_choice(NORMALIZATIONS), help="Range of the input's numbers. [by the graph, or 0..1]")
@click.option("--axes", type=_choice(AxisOrder), help="Axis order of the input. [by its shape]")
@click.option("--output-axes", type=_choice(AxisOrder), help="Axis order of a segmentation's scores. [by the shapes]")
@click.option("--box-order", type=_choice(BoxOrder), help="Order of a box's four numbers. [xyxy, if noise proves it]")
@click.option(
    "--no-object", type=_choice(get_args(NoObject)), help='Place of the class "no object" among the scores. [none]'
)
@click.option("--confidence", metavar="NAME", help="Output of a segmentation's scores per class, for a cascade.")
@click.option("--force", is_flag=True, help="Replace an existing manifest.")
def inspect(
    file: Path,
    folder: Path | None,
    labels: Labels | None,
    size: tuple[int, int] | None,
    signature: str | None,
    *,
    force: bool,
    **stated: Any,
) -> None:
    """Find the input and output of FILE, and write its manifest.

    FILE is a frozen graph (.pb), a SavedModel's, OpenVINO's or ONNX folder, or a Keras, ONNX, TensorFlow Lite or TorchScript
    file. The model is run, so inspect trusted files only. Where a file allows several readings, an error names the option
    that decides.
    """
    from modelling.inspection import inspection  # Slow imports, which `--help` does not need.
    from modelling.inspection.output_rule import Options

    found = inspection.inspect(
        file,
        labels=labels,
        size=size,
        signature=signature,
        options=Options(**stated),
    )
    console = Console()
    table = Table(title=str(found.path), show_header=False)
    interface, manifest = found.interface, found.manifest
    table.add_row("format", manifest.format)
    table.add_row("task", manifest.task)
    table.add_row("input", escape(str(found.image)))
    table.add_row(
        "fed as",
        f"{manifest.input.height}×{manifest.input.width} {manifest.input.layout}, scale {manifest.input.scale:g}",
    )
    table.add_row("output", escape(f"{interface.output}, {interface.kind}"))
    for head, (tensor, _) in list(interface.heads.items())[1:]:
        table.add_row(f"output {head}", escape(str(tensor)))
    table.add_row("classes", "?" if interface.classes is None else str(interface.classes))
    table.add_row("SHA-256", manifest.sha256)
    console.print(table)
    for note in found.notes:
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
    if folder is None:
        click.echo(
            f"\n{printable_lines(manifest.to_yaml())}\n--write models/NAME writes a model's folder with this model.yaml."
        )
    else:
        click.echo(f"wrote {inspection.write(found, folder, replace=force)}")


@model.command()
@click.argument("name", metavar="MODEL")
@click.argument("image", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Output folder. [.]")
@MODELS
@DEVICE
def run(name: str, image: Path, out: Path, repository: Repository, device: str) -> None:
    """Run MODEL on an IMAGE (JPEG or PNG) without a broker.

    The result is printed as text and written as PNG files.
    """
    from modelling.inspection import image_run  # See `inspect`.

    rgb = read_image_file(image)
    with ModelLoader(repository, Placement(device=device)).open(name) as loaded:
        result = image_run.run(loaded, rgb)
        click.echo(f"{loaded.describe()}: {result.inference_ms:.1f} ms warm")
    Console().print(result_table(result.result, result.card))
    click.echo("\n".join(f"wrote {path}" for path in image_run.write(result, rgb, out, image.stem)))


@model.command()
@click.argument("name", metavar="MODEL")
@click.argument("bag", type=click.Path(path_type=Path))
@click.option("--topic", "camera", help="The camera's image topic. [the first one with labels]")
@click.option("--frames", type=WholeRange(min=1), help="Maximum number of frames. [all]")
@TRUTH
@MAP
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with the confusion matrix.")
@MODELS
@DEVICE
def evaluate(
    name: str,
    bag: Path,
    *,
    repository: Repository,
    device: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Compare the results of MODEL with the truth of a BAG.

    The truth is the bag's labels or boxes, or the class in --truth. The metrics of a segmentation are mean IoU, pixel accuracy, IoU by class and confusion; those of a detector are average
    precision, recall and precision by class and size; that of a classifier is accuracy.
    """
    from modelling.evaluation.bag_images import EvaluationSettings
    from modelling.evaluation.evaluate import evaluate_model  # See `inspect`.

    with ModelLoader(repository, Placement(device=device)).open(name) as loaded, frame_progress() as progress:
        task = progress.add_task(f"{name} on {bag.name}", total=settings["frames"])

        def on_frame(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        result = evaluate_model(loaded, bag, EvaluationSettings(on_frame=on_frame, **settings))
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    Console().print(result.table(f"{name} on {bag}"))
    click.echo(result.summary)


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
        if not all(part.isascii() and part.isdecimal() and self._minimum <= int(part) <= 1024 for part in parts):
            self.fail(f"{value!r}: give whole numbers from {self._minimum} to 1024, separated by commas", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


@model.command()
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
    """Measure every way to run MODEL on this machine.

    Engine, precision, threads and batch vary. The comparison includes every engine that reads the model's file, and the models that were converted from it. Ratios are
    relative to the reference with one frame at a time in the same run, and labels are compared with those of the
    reference: the model that MODEL was converted from, else MODEL itself, by TensorFlow if it reads the format.
    """
    from modelling import engine_comparison  # Its imports are slow, and `list` needs none.
    from modelling.engine_comparison import WEATHER, holdout_bag

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


@model.command()
@click.argument("names", metavar="[MODEL]...", nargs=-1)
@JSON
@MODELS
@DEVICE
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], repository: Repository, device: str, *, as_json: bool) -> None:
    """Check models: hash, tensors, equal results of two runs.

    Without MODEL, all are checked. A converted model must agree with its source, too. The exit code is 1 if a model fails.
    """
    from modelling.verification import verify as verify_models  # Slow imports, see `bench`.

    with progress_console().status("verifying") as status:
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
    for result in results:
        share = "" if result.agreement is None else f"{100 * result.agreement:.4f}"
        checks = f"{', '.join(result.checks)}: ok" if result.failure is None else f"FAILED: {result.failure}"
        table.add_row(result.name, result.version, result.engine, share, checks)
    return table
