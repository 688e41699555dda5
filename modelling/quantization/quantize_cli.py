"""`skylane model quantize`: a model in fewer bits."""

from pathlib import Path

import click
from rich.console import Console

from cloud.engines.engine import Precision
from cloud.models.repository import Repository, default_root
from shared.messages.topics import checked

_UNSEEN = 20  # Frames that show what was lost.


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
    "--bag", type=click.Path(exists=True, path_type=Path), help="Frames to calibrate with. [synthetic drives]"
)
@click.option("--frames", type=click.IntRange(1, 10_000), default=40, show_default=True, help="To calibrate with.")
@click.option("--name", "called", metavar="NAME", help="Call the new model so. [MODEL-PRECISION]")
@click.option("--force", is_flag=True, help="Replace the new model where there is one of its name.")
@click.option(
    "--models", "root", type=click.Path(file_okay=False, path_type=Path), help="The model repository. [your own]"
)
def quantize(
    name: str,
    root: Path | None,
    *,
    precision: str,
    bag: Path | None,
    frames: int,
    called: str | None,
    force: bool,
) -> None:
    """Write MODEL in fewer bits as a new model for OpenVINO, and tell what its answers lost on frames it never saw."""
    # Importing OpenVINO takes seconds, and `list` does not need it.
    from modelling.quantization import calibration_frames, quantization  # noqa: PLC0415

    repository = Repository(root or default_root())
    card = repository.card(name)
    with Console(stderr=True).status("frames to calibrate with") as status:
        pictures = (
            calibration_frames.drawn(card, frames, _UNSEEN)
            if bag is None
            else calibration_frames.recorded(card, bag, frames, _UNSEEN)
        )
        done = quantization.quantise(
            repository,
            name,
            Precision(precision),
            pictures,
            called=checked("model", called or f"{name}-{precision}"),
            replace=force,
            on_step=status.update,
        )
    click.echo(f"wrote {done.folder}: {done.megabytes_after:.2f} MB, {name} {done.megabytes_before:.2f} MB")
    click.echo(f"labels as {name}'s: {done.agreement:.3%} on {done.frames} frames that were not calibrated with")
    if done.mean_iou_before is not None and done.mean_iou_after is not None:
        click.echo(
            f"mean IoU {done.mean_iou_after:.4f}, {name} {done.mean_iou_before:.4f}: "
            f"{100 * (done.mean_iou_after - done.mean_iou_before):+.2f} points"
        )
