"""The command `skylane view`: opens a finished run in Rerun."""

import signal
from contextlib import closing, suppress
from pathlib import Path

import click

from edge.view.finished_run import draw_run, files_for_rerun, model_of
from edge.view.viewer import LOOPBACK, VIEWERS, ViewSettings
from shared.flags import EXISTING_FOLDER
from shared.registry import load
from shared.runtime.processes import interrupt_on_termination

_HISTORY_MB = 4000


@click.command()
@click.argument("run", type=EXISTING_FOLDER)
@click.option("--source", help="What was played, to show its images behind the masks; not needed after --sink rerun.")
def view(run: Path, source: str | None) -> None:
    """Open the finished run RUN in Rerun, a page on this machine, until Ctrl-C; it plays at the speed of the run."""
    card, _ = model_of(run)
    with interrupt_on_termination():
        viewer = load("viewer", VIEWERS, "rerun")(ViewSettings("rerun", LOOPBACK, card, history_mb=_HISTORY_MB))
        with closing(viewer):
            if files := files_for_rerun(run):
                for file in files:
                    viewer.scene.draw_file(file)
            else:
                draw_run(run, source, viewer.scene)
            viewer.scene.play()
            with suppress(KeyboardInterrupt):  # The line is what others wait for before they end this command.
                click.echo(f"{viewer.address}\n{viewer.note}; Ctrl-C ends it")
                signal.pause()
