"""Settings of benchmarks: a field of a plan's dataclass is an option of the benchmark's command as well."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from bench.harness.output import show
from ops.broker.broker import BrokerKind
from ops.processes.environment import BenchRun
from rosbag_tools.drive.recording import sample_bag
from shared.files import check_writable
from shared.flags import FiniteRange, WholeRange, warn_renamed
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.models.repository import default_root
from shared.runtime.machine import machine

_OPTION, _DRIVE = "option", "drive"
_FORMER = "former_"

EXISTING_PATH = click.Path(exists=True, path_type=Path)
SERVER_COUNT = WholeRange(1, 32)
JSON_FLAG = click.Option(["--json", "as_json"], is_flag=True, help="Print only the result, as JSON.")
JSON_FILE = click.Option(
    ["--json", "path"],
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result to this file as JSON.",
)


def bench_command(
    name: str,
    plan: type[Any],
    measure: Callable[[Any, BenchRun], dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterable[RenderableType]],
    *,
    json: click.Option = JSON_FLAG,
) -> click.Command:
    """Returns the command of a benchmark, with an option for every field of its plan that is an `option`.

    `measure` returns the JSON output without the machine, and its docstring is the command's help; `tables` yields what is
    printed instead of the JSON. The exit code is 1 if the output has `failures`.
    """
    drives = {each.name: each.metadata[_DRIVE] for each in fields(plan) if _DRIVE in each.metadata}

    def run(*, as_json: bool = False, path: Path | None = None, **settings: Any) -> None:
        if path is not None:
            check_writable(path, "--json")
        for former in [each for each in settings if each.startswith(_FORMER)]:
            current = former.removeprefix(_FORMER)
            settings[current] = settings.pop(former) or settings[current]
        for bag_name, drive_frames in drives.items():
            settings[bag_name] = settings[bag_name] or sample_bag(drive_frames or settings["frames"])
        with Console(stderr=True).status("preparing") as status, BenchRun(status.update) as bench_run:
            result = {**measure(plan(**settings), bench_run), "machine": machine()}
        show(result, tables(result), as_json=as_json, path=path)
        if result.get("failures"):
            sys.exit(1)

    return click.Command(name, callback=run, params=[*parameters(plan), json], help=inspect.getdoc(measure))


def parameters(plan: type[Any]) -> list[click.Parameter]:
    """Returns the options of a plan's fields."""
    params: list[click.Parameter] = []
    for each in fields(plan):
        if _OPTION in each.metadata:
            keywords = {"flag": f"--{each.name.replace('_', '-')}", "old": None, **each.metadata[_OPTION]}
            flag, old = keywords.pop("flag"), keywords.pop("old")
            default = each.default if each.default_factory is MISSING else each.default_factory
            params.append(click.Option([flag, each.name], default=default, **keywords))
            if old is not None:
                params.append(_old_option(old, flag, each.name, keywords))
    return params


def _old_option(old: str, flag: str, name: str, keywords: Mapping[str, Any]) -> click.Option:
    """Returns a hidden option that sets another one and warns that it was renamed."""

    def warn(_: click.Context, __: click.Parameter, value: Any) -> Any:
        if value:
            warn_renamed(old, flag)
        return value

    return click.Option([old, f"{_FORMER}{name}"], callback=warn, **{**keywords, "hidden": True})


def renamed_command(old: str, command: click.Command) -> click.Command:
    """Returns a hidden command with the old name of another one, which warns and then runs it."""

    def run(**settings: Any) -> None:
        warn_renamed(f"bench {old}", f"bench {command.name}")
        assert command.callback is not None
        command.callback(**settings)

    return click.Command(old, callback=run, params=command.params, help=command.help, hidden=True)


def option(default: Any = None, **keywords: Any) -> Any:
    """A field that is an option; a callable `default` is called for every plan.

    `keywords`: those of click.Option, `flag` for another name than the field's, and `old` for a former name.
    """
    return field(**{"default_factory" if callable(default) else "default": default}, metadata={_OPTION: keywords})


def number(default: float, least: float, most: float | None, text: str, **keywords: Any) -> Any:
    """A number in a range; an integer if `default` is one."""
    is_integer = isinstance(default, int)
    kind = WholeRange(int(least), None if most is None else int(most)) if is_integer else FiniteRange(least, most)
    return option(default, type=kind, show_default=True, help=text, **keywords)


def rounds(default: int, most: int = 1000) -> Any:
    """The number of rounds."""
    return number(default, 1, most, "Number of rounds.")


def frames(default: int, least: int = 4, text: str = "Frames per round.") -> Any:
    """The number of frames."""
    return number(default, least, 10_000, text)


def bag(drive_frames: int | None = None) -> Any:
    """A bag; by default a synthetic drive of `drive_frames`, or of the plan's `frames`."""
    keywords = {
        "type": EXISTING_PATH,
        "help": "Bag with the frames to send. [a synthetic drive]",
    }
    return field(default=None, metadata={_OPTION: keywords, _DRIVE: drive_frames})


def models() -> Any:
    """The model repository."""
    return option(default_root, type=click.Path(file_okay=False, path_type=Path), help="Model repository.")


def model() -> Any:
    """The name of a model."""
    return option("road-small", show_default=True, help="Name of the model.")


def engine() -> Any:
    """The engine; None: as the model's manifest says."""
    return option(help="Inference engine. [as the model's manifest says]")


def codec() -> Any:
    """The codec of the frames."""
    return option("jpeg", type=click.Choice([*IMAGE_CODECS]), show_default=True, help="Image codec.")


def broker() -> Any:
    """The kind of broker."""
    kinds = click.Choice([kind.value for kind in BrokerKind])
    return option(BrokerKind.AUTO.value, flag="--broker", type=kinds, help="Kind of broker to start.")


def choices(known: Iterable[str], default: tuple[str, ...], text: str, flag: str, **keywords: Any) -> Any:
    """Some of the known names; the option is repeatable."""
    return option(default, flag=flag, multiple=True, type=click.Choice([*known]), help=text, **keywords)


def throughput_window() -> Any:
    """The frames in flight while throughput is measured."""
    return number(4, 1, 64, "Unanswered frames while throughput is measured.")


def vehicle_window() -> Any:
    """The frames in flight of each vehicle, which always fills its window, so that every lost frame shows."""
    return number(2, 1, 64, "Unanswered frames per vehicle.")
