"""`skylane model convert`: a model in another format."""

from importlib import import_module
from itertools import islice
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from cloud.engines.engine import Images, Precision
from cloud.models.repository import Repository, default_root
from modelling.conversion.targets import TARGETS
from shared.imaging.frames import Frame, Layout
from shared.messages.model_card import ModelCard
from shared.messages.topics import checked


@click.command("convert")
@click.argument("name", metavar="MODEL")
@click.option("--to", "target", type=click.Choice(list(TARGETS)), required=True, help="The format to write.")
@click.option(
    "--precision",
    type=click.Choice([Precision.FP32.value, Precision.FP16.value]),
    default=Precision.FP32.value,
    show_default=True,
    help="fp16: half the bytes, weights rounded.",
)
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to compare on. [those that ship]")
@click.option("--frames", type=click.IntRange(1, 1000), default=4, show_default=True, help="To compare on.")
@click.option("--name", "called", metavar="NAME", help="Call the new model so. [MODEL-FORMAT]")
@click.option("--force", is_flag=True, help="Replace the new model where there is one of its name.")
@click.option(
    "--models", "root", type=click.Path(file_okay=False, path_type=Path), help="The model repository. [your own]"
)
def convert_model(
    name: str,
    root: Path | None,
    *,
    target: str,
    precision: str,
    bag: Path | None,
    frames: int,
    called: str | None,
    force: bool,
) -> None:
    """Write MODEL in another format as a new model, and tell how many of its labels stay the same."""
    convert = import_module("modelling.conversion.conversion").convert  # What it imports, `list` needs none of.
    repository = Repository(root or default_root())
    card = repository.card(name)
    suffix = target.replace("_", "-") if precision == Precision.FP32 else f"{target.replace('_', '-')}-{precision}"
    with Console(stderr=True).status(f"{name} to {target}") as status:
        made = convert(
            repository,
            name,
            target,
            _frames(card, frames, bag),
            called=checked("model", called or f"{name}-{suffix}"),
            precision=Precision(precision),
            replace=force,
            on_step=status.update,
        )
    size = f"{made.megabytes_after:.2f} MB, {name} {made.megabytes_before:.2f} MB"
    click.echo(f"wrote {made.folder}: {size}; batches of up to {made.manifest.batching.max_size}")
    click.echo(f"labels as {made.reference}'s: {made.agreement:.5%} on {made.frames} frames")
    if not made.holds_floor:
        click.echo(f"under its floor of {made.manifest.agreement_floor:.2%}: engine auto will not take it")


def _frames(card: ModelCard, count: int, bag: Path | None) -> Images:
    """uint8 N×H×W×3 as the model takes them."""
    if bag is None:
        shipped = import_module("cloud.models.warmup_images").pictures(card.height, card.width, count)
        return np.ascontiguousarray(shipped if card.layout is Layout.RGB8 else shipped[..., ::-1])
    source = import_module("rosbag_tools.reading.frames").BagSource(bag)
    prepared = import_module("modelling.evaluation.segmentation").prepared
    try:
        found = islice((each for each in source.frames() if isinstance(each, Frame)), count)
        return np.stack([prepared(each.pixels, each.layout, card, "binning")[0] for each in found])
    finally:
        source.close()
