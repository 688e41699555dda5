"""`skylane model quantize`."""

from pathlib import Path

import click
from rich.console import Console

from modelling.cli_options import FORCE, MODELS
from shared.flags import WholeRange
from shared.messages.topics import validate_name
from shared.models.manifest import Precision
from shared.models.repository import Repository

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
    """Write MODEL with fewer bits as a new model for OpenVINO, and report the loss of accuracy on other frames."""
    # Imported here, because OpenVINO takes seconds to import and `list` does not need it.
    from modelling.quantization import calibration_frames, quantization  # noqa: PLC0415

    card = repository.find(name).card()
    with Console(stderr=True).status("preparing calibration frames") as status:
        calibration = (
            calibration_frames.synthetic_frames(card, frames, _HOLDOUT)
            if bag is None
            else calibration_frames.bag_frames(card, bag, frames, _HOLDOUT)
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
