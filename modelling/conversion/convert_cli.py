"""`skylane model convert` and `skylane model quantize`."""

from importlib import import_module
from pathlib import Path

import click
import numpy as np

from modelling.cli_options import FORCE, MODELS
from modelling.conversion.derived_model import TARGETS
from shared.flags import WholeRange
from shared.imaging.frames import Layout
from shared.inference.engine import Images
from shared.messages.model_card import ModelCard
from shared.messages.topics import validate_name
from shared.models.manifest import Precision
from shared.models.repository import Repository
from shared.quiet import progress_console


@click.command("convert")
@click.argument("name", metavar="MODEL")
@click.option("--to", "target", type=click.Choice(list(TARGETS)), required=True, help="The format to convert to.")
@click.option(
    "--precision",
    type=click.Choice([Precision.FP32.value, Precision.FP16.value]),
    default=Precision.FP32.value,
    show_default=True,
    help="fp16 halves the file size and rounds the weights.",
)
@click.option(
    "--bag", type=click.Path(exists=True, path_type=Path), help="Bag with frames to compare on. [the built-in frames]"
)
@click.option(
    "--frames", type=WholeRange(1, 1000), default=4, show_default=True, help="Number of frames to compare on."
)
@click.option("--name", "new_name", metavar="NAME", help="Name of the new model. [MODEL-FORMAT]")
@FORCE
@MODELS
def convert_model(
    name: str,
    repository: Repository,
    *,
    target: str,
    precision: str,
    bag: Path | None,
    frames: int,
    new_name: str | None,
    force: bool,
) -> None:
    """Convert MODEL to another format as a new model. The share of labels that stay the same is reported."""
    convert = import_module("modelling.conversion.conversion").convert  # Its imports are slow; `list` needs none.
    card = repository.find(name).card()
    suffix = target.replace("_", "-") if precision == Precision.FP32 else f"{target.replace('_', '-')}-{precision}"
    with progress_console().status(f"{name} to {target}") as status:
        converted = convert(
            repository,
            name,
            target,
            _frames(card, frames, bag),
            new_name=validate_name("model", new_name or f"{name}-{suffix}"),
            precision=Precision(precision),
            replace=force,
            on_step=status.update,
        )
    size = f"{converted.megabytes_after:.2f} MB, {name} {converted.megabytes_before:.2f} MB"
    click.echo(f"wrote {converted.folder}: {size}; batches of up to {converted.manifest.batching.max_size}")
    click.echo(f"labels equal to {converted.reference}'s: {converted.agreement:.5%} on {converted.frames} frames")
    if not converted.holds_floor:
        click.echo(f"below its floor of {converted.manifest.agreement_floor:.2%}: engine auto will not use it")


def _frames(card: ModelCard, count: int, bag: Path | None) -> Images:
    """Returns uint8 N×H×W×3 frames in the model's size and channel order."""
    if bag is None:
        builtin = import_module("shared.inference.model").warmup_images(card.height, card.width, count)
        return np.ascontiguousarray(builtin if card.layout is Layout.RGB8 else builtin[..., ::-1])
    return np.stack(import_module("modelling.evaluation.bag_images").prepared_images(bag, card, count))


_HOLDOUT = 20  # Frames to compare the models on.


@click.command()
@click.argument("name", metavar="MODEL")
@click.option(
    "--precision",
    type=click.Choice([Precision.INT8.value, Precision.FP16.value]),
    default=Precision.INT8.value,
    show_default=True,
    help="int8: weights and activations of convolutions; fp16: weights.",
)
@click.option(
    "--bag", type=click.Path(exists=True, path_type=Path), help="Bag with frames to calibrate with. [synthetic drives]"
)
@click.option(
    "--frames", type=WholeRange(1, 10_000), default=40, show_default=True, help="Number of calibration frames."
)
@click.option("--name", "new_name", metavar="NAME", help="Name of the new model. [MODEL-PRECISION]")
@FORCE
@MODELS
def quantize(
    name: str,
    repository: Repository,
    *,
    precision: str,
    bag: Path | None,
    frames: int,
    new_name: str | None,
    force: bool,
) -> None:
    """Write MODEL with fewer bits as a new model for OpenVINO. The loss of accuracy on other frames is reported."""
    # Imported here, because OpenVINO takes seconds to import and `list` does not need it.
    from modelling import quantization

    card = repository.find(name).card()
    with progress_console().status("preparing calibration frames") as status:
        calibration = (
            quantization.synthetic_frames(card, frames, _HOLDOUT)
            if bag is None
            else quantization.bag_frames(card, bag, frames, _HOLDOUT)
        )
        result = quantization.quantise(
            repository,
            name,
            Precision(precision),
            calibration,
            new_name=validate_name("model", new_name or f"{name}-{precision}"),
            replace=force,
            on_step=status.update,
        )
    click.echo(f"wrote {result.folder}: {result.megabytes_after:.2f} MB, {name} {result.megabytes_before:.2f} MB")
    click.echo(f"labels equal to {name}'s: {result.agreement:.3%} on {result.frames} frames not used for calibration")
    if result.mean_iou_before is not None and result.mean_iou_after is not None:
        click.echo(
            f"mean IoU {result.mean_iou_after:.4f}, {name} {result.mean_iou_before:.4f}: "
            f"{100 * (result.mean_iou_after - result.mean_iou_before):+.2f} points"
        )
