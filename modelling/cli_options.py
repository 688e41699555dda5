"""Options and the progress bar that several `skylane model` commands share."""

from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shared.flags import EXISTING_FILE
from shared.imaging.labels import label_sets, labels_from
from shared.models.repository import Repository, default_root
from shared.quiet import progress_console

LABELS: dict[str, Any] = {
    "metavar": "NAME|FILE",
    "callback": lambda _context, _option, given: None if given is None else labels_from(given),
    "help": f"Label set ({', '.join(label_sets())}) or label file (YAML or SLabel XML) with the classes' names.",
}


MODELS = click.option(
    "--models",
    "repository",
    type=click.Path(file_okay=False, path_type=Path),
    callback=lambda _context, _option, root: Repository(root or default_root()),
    help="The model repository. [your own]",
)
DEVICE = click.option("--device", default="auto", show_default=True, help="auto, cpu or gpu:N.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
FORCE = click.option("--force", is_flag=True, help="Replace an existing model of that name.")
REFERENCE = click.option(
    "--reference",
    "compared_with",
    type=click.Choice(("labels", "results")),
    help="What counts as right: true labels, or the results of the reference model. [labels if there are some]",
)
TRUTH = click.option("--truth", metavar="CLASS", help="True class of all frames of the bag, for a classifier.")

MAP = click.option(
    "--map",
    "map_file",
    type=EXISTING_FILE,
    help="Map file for masks, with lines `network class: truth class`. [equal names, and the shipped maps]",
)


def frame_progress() -> Progress:
    """Returns a progress bar on standard error that counts frames or runs, and is removed at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=progress_console(), transient=True)
