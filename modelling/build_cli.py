"""`skylane model build`, and the options that `python -m training` shares with it."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from modelling.cli_options import LABELS, MODELS
from modelling.recipes import RECIPES, Format
from shared.flags import WholeRange
from shared.messages.topics import validate_name
from shared.models.repository import Repository

_OPTIONS = (
    click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice(sorted(RECIPES))),
    click.option("--seed", type=WholeRange(0, (1 << 32) - 1), help="Seed of the training or of random weights."),
    click.option("--labels", default="street12", show_default=True, **LABELS),
    click.option(
        "--format",
        "formats",
        type=click.Choice([each.value for each in Format]),
        callback=lambda _context, _option, given: None if given is None else (Format(given),),
        help="Build this format only. [all formats of the model]",
    ),
    click.option(
        "--name",
        metavar="NAME",
        callback=lambda _context, _option, given: given and validate_name("model", given),
        help="Name of the new model; needs --format and one NAME.",
    ),
    click.option("--free-batch", is_flag=True, help="Accept any batch size instead of 1."),
    click.option(
        "--weights-from",
        "source",
        type=click.Path(file_okay=False, path_type=Path),
        help="Repository with the built-in weights. [the same]",
    ),
    MODELS,
)


def recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of what builds recipes: `names`, `seed`, `repository`, and keywords of `modelling.building.build`."""

    @wraps(command)
    def checked(names: tuple[str, ...], **options: Any) -> None:
        if options["name"] is not None and (options["formats"] is None or len(names) > 1):
            raise click.UsageError("--name applies to one model in one format: give --format, and one NAME")
        command(names, **options)

    for option in reversed(_OPTIONS):
        checked = option(checked)
    return checked


class _Build(click.Command):
    """The command; with its former option `--train`, it names the command that has replaced it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        if "--train" in args:
            command = shlex.join(["python", "-m", "training", *(each for each in args if each != "--train")])
            raise click.UsageError(f"'--train' has moved: run `{command}` in a checkout of the repository", ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_Build)
@recipe_options
@click.option("--untrained", is_flag=True, help="Use random weights; every image made with them is stamped.")
def build(names: tuple[str, ...], repository: Repository, *, untrained: bool, seed: int | None, **options: Any) -> None:
    """Build models into the repository.

    Their weights are the built-in ones, or random ones if there are none.
    """
    import_module("cloud.engines.tensorflow.runtime")  # Before the others, because it imports TensorFlow quietly.
    from modelling import building  # TensorFlow takes seconds to import, and `--help` does not need it.

    for name in names:
        recipe = RECIPES[name] if seed is None else replace(RECIPES[name], seed=seed)
        if untrained:
            recipe = replace(recipe, trained=False)
        for folder in building.build(recipe, repository.root, **options):
            click.echo(f"built {folder}")
