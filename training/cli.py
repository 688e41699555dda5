"""`python -m training`: trains models and builds them into a repository."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from modelling.build_cli import recipe_options
from modelling.recipes import RECIPES
from shared.flags import FiniteRange, WholeRange
from shared.models.repository import Repository
from shared.quiet import progress_console, with_switch
from shared.runtime.processes import interrupt_on_termination


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@recipe_options
@click.option("--minutes", type=FiniteRange(min=0, min_open=True), help="Time limit of the training.")
@click.option("--steps", type=WholeRange(min=1), help="Number of training steps.")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for training frames and checkpoints. [runs/training]",
)
@click.pass_context
def train(
    context: click.Context,
    /,
    names: tuple[str, ...],
    repository: Repository,
    *,
    work: Path | None,
    seed: int | None,
    minutes: float | None,
    steps: int | None,
    **options: Any,
) -> None:
    """Train models on the synthetic drive, for hours on a CPU, and build them into the repository."""
    context.with_resource(interrupt_on_termination())  # Ends the processes that render the drive with it.
    import_module("cloud.engines.tensorflow.runtime")  # Before the others, because it imports TensorFlow quietly.
    from modelling.building import build  # TensorFlow takes seconds to import, and `--help` does not need it.
    from training import recipe_training  # As above.

    given = {"seed": seed, "minutes": minutes, "steps": steps}
    settings = {key: value for key, value in given.items() if value is not None}
    source, labels = options["source"] or repository.root, options["labels"]
    for name in names:
        recipe = RECIPES[name] if seed is None else replace(RECIPES[name], seed=seed)
        folder = work or Path("runs/training") / name
        with _progress(f"{name}: rendering the drive") as report:
            weights = recipe_training.train(recipe, folder, settings, report, source=source, labels=labels)
        for built in build(recipe, repository.root, weights=weights, **options):
            click.echo(f"built {built}")


@contextmanager
def _progress(text: str) -> Iterator[Callable[[float, str], None]]:
    """Shows a progress bar; yields the function that takes the finished share, 0 to 1, and a line of text."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console()) as progress:
        task = progress.add_task(text, total=1.0)
        yield lambda done, text: progress.update(task, completed=done, description=text)


with_switch(train)
