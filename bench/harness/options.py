"""Command-line options that several benchmarks share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cloud.models.repository import default_root
from shared.broker.broker import BrokerKind
from shared.flags import FiniteRange
from shared.imaging.image_codecs import IMAGE_CODECS

Command = TypeVar("Command", bound=Callable[..., Any])


def number(name: str, default: float, least: float, most: float | None, text: str) -> Callable[[Command], Command]:
    """An option with a number in a range; an integer if `default` is one."""
    is_integer = isinstance(default, int)
    kind = click.IntRange(int(least), None if most is None else int(most)) if is_integer else FiniteRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def rounds(default: int, most: int = 1000) -> Callable[[Command], Command]:
    """The number of rounds."""
    return number("--rounds", default, 1, most, "Number of rounds.")


def frames(default: int, least: int = 4, text: str = "Frames per round.") -> Callable[[Command], Command]:
    """The number of frames."""
    return number("--frames", default, least, 10_000, text)


bag = click.option(
    "--bag", type=click.Path(exists=True, path_type=Path), help="Bag with the frames to send. [a synthetic drive]"
)
models = click.option(
    "--models", type=click.Path(file_okay=False, path_type=Path), default=default_root, help="Model repository."
)
model = click.option("--model", default="road-small", show_default=True, help="Name of the model.")
engine = click.option("--engine", help="Inference engine. [as the model's manifest says]")
codec = click.option(
    "--codec", type=click.Choice([*IMAGE_CODECS]), default="jpeg", show_default=True, help="Image codec."
)
broker = click.option(
    "--broker",
    "broker_kind",
    type=click.Choice([kind.value for kind in BrokerKind]),
    default=BrokerKind.AUTO.value,
    help="Kind of broker to start.",
)
throughput_window = number("--window", 4, 1, 64, "Unanswered frames while throughput is measured.")
vehicle_window = number("--window", 2, 1, 64, "Unanswered frames per vehicle.")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON.")
json_file = click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file as JSON."
)
