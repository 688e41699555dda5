"""`skylane model judge-gate`."""

import json
from pathlib import Path

import click
from rich.console import Console

from modelling.cli_options import DEMOSAIC, DEVICE, JSON, MODELS, frame_progress
from shared.flags import WholeRange
from shared.models.repository import Repository

_METHODS = ("mse", "pixels", "none")


@click.command("judge-gate")
@click.argument("bags", metavar="BAG...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tuning",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The tuning file to judge.",
)
@click.option(
    "--gate", type=click.Choice(_METHODS), default="mse", show_default=True, help="Method of comparing frames."
)
@click.option("--frames", type=WholeRange(min=1), help="Maximum number of frames of each bag. [all]")
@DEMOSAIC
@JSON
@MODELS
@DEVICE
def judge_gate(
    bags: tuple[Path, ...],
    *,
    path: Path,
    gate: str,
    frames: int | None,
    demosaic: str,
    as_json: bool,
    repository: Repository,
    device: str,
) -> None:
    """Measure what tuned thresholds cost and save on BAGs that they were not tuned on.

    For each BAG: the share of frames that are sent, reused and answered locally, the reference model's accuracy, and the
    points of it that are lost by the gate, by the cascade, and by both. Intervals are Student's, over the BAGs.
    """
    # Imported here, because engines take seconds to import and `list` does not need them.
    from modelling.reuse.judge import judge  # noqa: PLC0415
    from modelling.reuse.opening import opened_models  # noqa: PLC0415
    from modelling.reuse.replay import ReplaySettings, replay  # noqa: PLC0415
    from shared.reuse.tuning import read_tuning  # noqa: PLC0415

    tuning = read_tuning(path)
    names = (tuning.reference.name, None if tuning.local is None else tuning.local.name)
    with opened_models(repository, *names, device) as (model, local), frame_progress() as progress:
        tuning.check_reference(model.card.name, model.card.sha256, path)
        if local is not None:
            tuning.local_for(local.card.name, local.card.sha256, path)
        task = progress.add_task("running the models", total=None)
        settings = ReplaySettings(
            frames, demosaic, lambda done, total: progress.update(task, completed=done, total=total)
        )
        result = judge(replay(bags, model, local, settings), tuning, local, None if gate == "none" else gate)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    Console().print(result.table(f"{model.card.name} on {result.frames} frames of {len(bags)} drives"))
