"""Options that several `skylane model` commands share."""

from pathlib import Path

import click

MODELS = click.option(
    "--models", "root", type=click.Path(file_okay=False, path_type=Path), help="The model repository. [your own]"
)
DEVICE = click.option("--device", default="auto", show_default=True, help="auto, cpu or gpu:N.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
FORCE = click.option("--force", is_flag=True, help="Replace an existing model of that name.")
TRUTH = click.option("--truth", metavar="CLASS", help="True class of all frames of the bag, for a classifier.")
