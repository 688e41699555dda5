"""The front door: one command, whose parts are loaded when they are called."""

import errno
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
    "bench": Entry("bench.cli:bench", "bench,demo", "Measure what offloading costs, as ratios to bare inference."),
    "broker": Entry("shared.broker.cli:broker", "broker", "Run an MQTT broker on this machine."),
    "cloud": Entry("cloud.cli:cloud", "cloud", "The cloud node: answer frames with masks."),
    "demo": Entry("bench.demo:demo", "demo", "The whole journey here: bag, broker, cloud, edge, masks."),
    "edge": Entry("edge.cli:edge", "edge", "The vehicle node: send frames, take masks, log every stage."),
    "health": Entry("shared.runtime.health:health", "edge", "Check that a worker or a vehicle is online."),
    "model": Entry("modelling.model_cli:model", "cloud,edge", "Build, inspect, run and evaluate models."),
    "report": Entry("bench.report.cli:report", "report", "Show, compare, check or repair runs and studies."),
    "send": Entry("edge.upload.cli:send", "transports", "Send pictures to workers, spread over them by load."),
    "study": Entry("bench.study.cli:study", "demo", "Run every combination of models, codecs, loads and links."),
}

_NO_ACCESS = {errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
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
        message = _message(error)
        if message is None:
            raise
        sys.stderr.write(f"skylane: {message}\n")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str | None:
    """What to tell the user of an error that a user can mend; None for a fault of Skylane's."""
    from shared.errors import SkylaneError  # noqa: PLC0415 (only a failing command pays for it)

    if isinstance(error, SkylaneError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _NO_ACCESS and error.filename is not None:
        return (
            f"cannot use {error.filename}: {error.strerror}; work in a folder that you may write to and that has room"
        )
    return None


def _set_memory_up(command: str) -> None:
    """Before a command allocates anything. What it needs is imported here: `skylane --help` is to be quick."""
    if command in _RUN_MODELS:
        from shared.runtime import huge_pages  # noqa: PLC0415 (see above)

        huge_pages.enter()
    if command in _MOVE_FRAMES:
        from shared.runtime import malloc  # noqa: PLC0415 (see above)

        malloc.keep()


if __name__ == "__main__":
    main()
