"""The front door: one command, whose parts are loaded when they are called."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """A command: where it lives, the pip extras it needs, its line of help."""

    path: str
    extras: str
    help: str


COMMANDS = {  # Paths and not functions: `skylane --help` must load neither TensorFlow nor OpenCV.
    "bag": Entry("rosbag_tools.cli:bag", "edge", "Make, inspect, cut and convert rosbags; no ROS needed."),
    "bench": Entry(
        "bench.cli:bench", "bench,cloud,edge", "Measure what offloading costs, as ratios to bare inference."
    ),
    "broker": Entry("shared.cli:broker", "broker", "Run an MQTT broker on this machine."),
    "cloud": Entry("cloud.cli:cloud", "cloud", "The cloud node: answer frames with masks."),
    "demo": Entry("bench.demo:demo", "bench,cloud,edge", "The whole journey here: bag, broker, cloud, edge, masks."),
    "edge": Entry("edge.cli:edge", "edge", "The vehicle node: send frames, take masks, log every stage."),
    "model": Entry("modelling.cli:model", "cloud,edge", "Build, inspect, run and evaluate models."),
    "report": Entry("bench.report.cli:report", "bench", "Show, compare, check or repair runs and studies."),
    "send": Entry("edge.sending.cli:send", "transports", "Send pictures to workers, spread over them by load."),
    "study": Entry(
        "bench.study.cli:study", "bench,cloud,edge", "Run every combination of models, codecs, loads and links."
    ),
}

_GRPC_LOG = "GRPC_VERBOSITY"
_RUN_MODELS = {"bench", "cloud", "demo", "model", "study"}  # Which huge pages make faster.
_MOVE_FRAMES = _RUN_MODELS | {"edge", "send"}  # Which take megabytes for each.


class FrontDoor(click.Group):
    """A group that knows its commands by name and help line, and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """The names, in the order of the alphabet."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].path.partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            from shared.errors import MissingExtraError  # noqa: PLC0415 (only a failing command pays for it)

            raise MissingExtraError(f"'skylane {cmd_name}'", str(error.name), COMMANDS[cmd_name].extras) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (the same)
        """The help lines, from the table instead of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in sorted(COMMANDS)])


@click.group(cls=FrontDoor, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="skylane")
def skylane() -> None:
    """Offload camera perception from a vehicle to a cloud, and prove where every millisecond went."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's is one line and exit code 1."""
    os.environ.setdefault(_GRPC_LOG, "NONE")  # Read when its library is loaded: a line for each attempt fills a disk.
    if arguments is None and sys.argv[1:2]:
        _set_memory_up(sys.argv[1])
    try:
        code: Any = skylane.main(args=arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except Exception as error:
        from shared.errors import SkylaneError  # noqa: PLC0415 (only a failing command pays for it)

        if not isinstance(error, SkylaneError):
            raise
        sys.stderr.write(f"skylane: {error}\n")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _set_memory_up(command: str) -> None:
    """Before a command allocates anything. What it needs is imported here: `skylane --help` is to be quick."""
    if command in _RUN_MODELS:
        from shared import huge_pages  # noqa: PLC0415 (see above)

        huge_pages.enter()
    if command in _MOVE_FRAMES:
        from shared import freed_memory  # noqa: PLC0415 (see above)

        freed_memory.keep()


if __name__ == "__main__":
    main()
