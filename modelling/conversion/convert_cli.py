"""`skylane model convert`."""

from importlib import import_module
from itertools import islice
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from modelling.cli_options import FORCE, MODELS
from modelling.conversion.targets import TARGETS
from shared.flags import WholeRange
from shared.imaging.frames import Frame, Layout
from shared.inference.engine import Images
from shared.messages.model_card import ModelCard
from shared.messages.topics import validate_name
from shared.models.manifest import Precision
from shared.models.repository import Repository


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
    """Convert MODEL to another format as a new model, and report the share of labels that stay the same."""
    convert = import_module("modelling.conversion.conversion").convert  # Its imports are slow; `list` needs none.
    card = repository.find(name).card()
    suffix = target.replace("_", "-") if precision == Precision.FP32 else f"{target.replace('_', '-')}-{precision}"
    with Console(stderr=True).status(f"{name} to {target}") as status:
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
    source = import_module("rosbag_tools.reading.frames").BagSource(bag)
    prepared = import_module("modelling.evaluation.segmentation").prepared
    try:
        frames = islice((each for each in source.frames() if isinstance(each, Frame)), count)
        return np.stack([prepared(each.pixels, each.layout, card, "binning")[0] for each in frames])
    finally:
        source.close()
