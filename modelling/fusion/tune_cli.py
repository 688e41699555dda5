"""`skylane model tune-fusion`."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from modelling.cli_options import DEVICE, MODELS, REFERENCE, frame_progress
from shared.files import check_writable
from shared.flags import WholeRange
from shared.models.repository import Repository

_SOURCE = click.Path(exists=True, path_type=Path)


@click.command("tune-fusion")
@click.argument("recordings", metavar="SOURCE...", nargs=-1, required=True, type=_SOURCE)
@click.option("--model", "reference", metavar="NAME", required=True, help="The reference model, which workers run.")
@click.option("--local-model", metavar="NAME", required=True, help="The local model, which the vehicle runs.")
@click.option(
    "--judge", "judged_on", metavar="SOURCE", multiple=True, type=_SOURCE, help="A recording to judge on (repeatable)."
)
@click.option(
    "--every", type=WholeRange(min=1), default=3, show_default=True, help="Count every n-th frame of a source."
)
@click.option(
    "--frames", type=WholeRange(min=2), default=100, show_default=True, help="Maximum number of frames of each source."
)
@click.option(
    "--local-side",
    type=WholeRange(8, 8192),
    metavar="N",
    help="The local model sees as much detail as N×N pixels have, as a smaller one would; see `python -m bench freshness`.",
)
@REFERENCE
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The fusion file to write, for --fusion of `skylane edge play`.",
)
@MODELS
@DEVICE
def tune_fusion(
    recordings: tuple[Path, ...],
    *,
    reference: str,
    local_model: str,
    judged_on: tuple[Path, ...],
    every: int,
    frames: int,
    local_side: int | None,
    compared_with: Any,
    out: Path,
    repository: Repository,
    device: str,
) -> None:
    """Measure how reliable the results of two models are by age.

    The reliability on SOURCEs is written to a fusion file. A SOURCE is a bag, a video file or a folder of images; of several cameras, the first is used. At 30 Hz they also have the
    ages of faster cameras. Both models run once on each frame, and are compared with true labels or boxes; without them,
    with the reference model's own results, where the result of the next frame confirms them. `--present fuse` then chooses
    between the result of the reference model, moved to now, and that of the local model. Without true labels it takes the
    local model's only where three or more recordings agree on it, because both models see the same image and share errors.
    Judge on other drives than those that the file is made from.
    """
    # Imported here, because engines take seconds to import and `list` does not need them.
    from edge.presenting.fusion_table import write_fusion
    from edge.reuse.opening import check_local_model
    from modelling.evaluation.bag_images import EvaluationSettings
    from modelling.fusion.tune import TuneFusionSettings, judged_table, moves_only
    from modelling.fusion.tune import tune_fusion as tuned
    from modelling.reuse.replay import opened_models

    check_local_model(repository.find(local_model), repository.find(reference).card())
    check_writable(out, "--out")
    with opened_models(repository, reference, local_model, device) as (model, local), frame_progress() as progress:
        assert local is not None
        task = progress.add_task("running the models", total=None)
        recording = EvaluationSettings(
            frames=frames,
            compared_with=compared_with,
            on_frame=lambda *_: progress.advance(task),
        )
        table = tuned(recordings, judged_on, model, local, TuneFusionSettings(every, local_side, recording))
    write_fusion(out, table)
    if table.header.judged:
        Console().print(judged_table(table))
    click.echo(f"wrote {out}")
    if moves_only(table):
        click.echo(
            f"{local_model} is nowhere shown to be right more often than the moved result, so `fuse` presents what `warp` does: "
            "give more recordings of different places, or a larger local model"
        )
