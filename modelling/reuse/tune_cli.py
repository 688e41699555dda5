"""`skylane model tune-gate` and `skylane model judge-gate`."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from modelling.cli_options import DEVICE, JSON, MAP, MODELS, REFERENCE, frame_progress
from shared.files import check_writable
from shared.flags import FiniteRange, WholeRange
from shared.models.repository import Repository

_BOTH = "both"
_METHODS = {"mse": ("mse",), "pixels": ("pixels",), _BOTH: ("mse", "pixels")}

# A usual time over a mobile network; without a delay, the simulated gate would reuse answers that the vehicle waits for.
_DELAY = click.option(
    "--delay-ms",
    type=FiniteRange(min=0),
    default=200.0,
    show_default=True,
    help="Time from a frame to a worker's answer: the total of `skylane edge play`.",
)


@click.command("tune-gate")
@click.argument(
    "recordings", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option("--model", "reference", metavar="NAME", required=True, help="The reference model, which workers run.")
@click.option(
    "--local-model", metavar="NAME", help="The local model of a cascade, which the vehicle runs. [no cascade]"
)
@click.option(
    "--loss",
    type=FiniteRange(min=0, max=100),
    default=1.0,
    show_default=True,
    help="Points of accuracy, or of agreement, that gate and cascade may lose together.",
)
@click.option("--gate-loss", type=FiniteRange(min=0, max=100), help="Points that the gate alone may lose. [as --loss]")
@click.option(
    "--gate",
    type=click.Choice(sorted(_METHODS)),
    default="mse",
    show_default=True,
    help="Method of comparing frames; both tunes a threshold for each.",
)
@click.option("--reuse-frames", type=WholeRange(min=1), default=10, show_default=True, help="Longest reuse in frames.")
@click.option(
    "--reuse-ms", type=FiniteRange(min=0, min_open=True), default=1000.0, show_default=True, help="Longest reuse."
)
@_DELAY
@click.option("--frames", type=WholeRange(min=1), help="Maximum number of frames of each source. [all]")
@REFERENCE
@MAP
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The tuning file to write, for --tuning of `skylane edge play`.",
)
@MODELS
@DEVICE
def tune_gate(
    recordings: tuple[Path, ...],
    *,
    reference: str,
    local_model: str | None,
    repository: Repository,
    device: str,
    out: Path,
    gate: str,
    frames: int | None,
    compared_with: Any,
    map_file: Path | None,
    **limits: Any,
) -> None:
    """Find the thresholds that send the fewest frames of SOURCEs.

    The thresholds are written to a tuning file. A SOURCE is a bag, a video file or a folder of images; of several cameras, the first is used. Both models run once on
    each frame; then vehicles with many thresholds are simulated. The chosen thresholds lose at most --loss points of
    accuracy (mean IoU, accuracy of a classifier, or mean average precision) against the reference model, on these SOURCEs
    and, with 95 % confidence, on others. Without true labels, the points are of agreement with the reference model's own
    results. Judge the thresholds on other drives than those they were tuned on.
    """
    # Imported here, because engines take seconds to import and `list` does not need them.
    from modelling.evaluation.bag_images import EvaluationSettings
    from modelling.reuse.replay import opened_models, replay
    from modelling.reuse.tune import TuneSettings, header, reliability_table, thresholds_table, tune
    from shared.reuse.tuning import write_tuning

    check_writable(out, "--out")
    with opened_models(repository, reference, local_model, device) as (model, local), frame_progress() as progress:
        task = progress.add_task("running the models", total=None)
        replayed = replay(
            recordings,
            model,
            local,
            EvaluationSettings(
                frames=frames,
                map_file=map_file,
                compared_with=compared_with,
                on_frame=lambda done, total: progress.update(task, completed=done, total=total),
            ),
        )
        progress.update(task, description="comparing thresholds", total=None)
        result = tune(replayed, model.card, local, TuneSettings(methods=_METHODS[gate], **limits))
    console = Console()
    console.print(thresholds_table(result))
    if result.tuning.local is not None:
        console.print(reliability_table(result.tuning))
    for method in _METHODS[gate]:
        if getattr(result.tuning.gate, method) is None:
            click.echo(f"no threshold of {method} keeps to --loss and --gate-loss: the file has none", err=True)
    write_tuning(out, result.tuning, header(result))
    click.echo(f"wrote {out}")


@click.command("judge-gate")
@click.argument(
    "recordings", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--tuning",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The tuning file to judge.",
)
@click.option(
    "--gate",
    type=click.Choice(("mse", "pixels", "none")),
    default="mse",
    show_default=True,
    help="Method of comparing frames.",
)
@_DELAY
@click.option("--frames", type=WholeRange(min=1), help="Maximum number of frames of each source. [all]")
@REFERENCE
@MAP
@JSON
@MODELS
@DEVICE
def judge_gate(
    recordings: tuple[Path, ...],
    *,
    path: Path,
    gate: str,
    delay_ms: float,
    frames: int | None,
    compared_with: Any,
    map_file: Path | None,
    as_json: bool,
    repository: Repository,
    device: str,
) -> None:
    """Measure what tuned thresholds cost and save on new SOURCEs.

    Give other SOURCEs than those of the tuning. For each SOURCE (a bag, a video file or a folder of images): the share of frames that are sent, reused and answered
    locally, the reference model's accuracy, and the points of it that are lost by the gate, by the cascade, and by both.
    Without true labels, the agreement with the reference model's own results replaces its accuracy. Intervals are
    Student's, over the SOURCEs.
    """
    # Imported here, because engines take seconds to import and `list` does not need them.
    from modelling.evaluation.bag_images import EvaluationSettings
    from modelling.reuse.judge import judge
    from modelling.reuse.replay import opened_models, replay
    from shared.reuse.tuning import read_tuning

    tuning = read_tuning(path)
    names = (tuning.reference.name, None if tuning.local is None else tuning.local.name)
    with opened_models(repository, *names, device) as (model, local), frame_progress() as progress:
        tuning.check_reference(model.card.name, model.card.sha256, path)
        if local is not None:
            tuning.local_for(local.card.name, local.card.sha256, path)
        task = progress.add_task("running the models", total=None)
        settings = EvaluationSettings(
            frames=frames,
            map_file=map_file,
            compared_with=compared_with,
            on_frame=lambda done, total: progress.update(task, completed=done, total=total),
        )
        replayed = replay(recordings, model, local, settings)
        result = judge(replayed, tuning, local, None if gate == "none" else gate, delay_ms)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    Console().print(result.table(f"{model.card.name} on {result.frames} frames of {len(recordings)} drives"))
