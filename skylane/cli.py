"""The command `skylane`, whose subcommands are imported only when they are called."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from shared.lazy_group import CommandEntry, LazyGroup
from shared.quiet import with_switch

COMMANDS = {  # Import paths, so that `skylane --help` loads neither TensorFlow nor OpenCV.
    "bag": CommandEntry("rosbag_tools.cli:bag", "edge", "Create, inspect, edit and convert rosbags, without ROS."),
    "batch": CommandEntry("ops.batch.cli:batch", "batch", "Run a model over a library of bags."),
    "broker": CommandEntry("ops.broker.cli:broker", "broker", "Run an MQTT broker on this machine."),
    "cloud": CommandEntry("cloud.cli:cloud", "cloud", "Run a cloud worker, which answers frames with masks."),
    "demo": CommandEntry("ops.demo:demo", "demo", "Run the whole pipeline on this machine: bag, broker, cloud, edge."),
    "doctor": CommandEntry(
        "ops.doctor.cli:doctor",
        "edge",
        "Check this machine, the broker and the workers; name what to do.",
    ),
    "edge": CommandEntry("edge.cli:edge", "edge", "Run a vehicle node, which sends frames and logs every stage."),
    "health": CommandEntry("shared.health:health", "edge", "Check that a worker or a vehicle is online."),
    "link": CommandEntry("ops.link.cli:link", "edge", "Emulate a link with known faults, between vehicle and broker."),
    "model": CommandEntry("modelling.model_cli:model", "cloud,edge", "Build, inspect, run and evaluate models."),
    "report": CommandEntry("analysis.report.cli:report", "report", "Show, compare, check or repair runs and studies."),
    "send": CommandEntry("edge.upload.cli:send", "transports", "Send images to workers, balanced by load."),
    "status": CommandEntry("ops.fleet.cli:status", "edge", "Show the workers and vehicles at a broker."),
    "study": CommandEntry("ops.study.cli:study", "demo", "Run every combination of models, codecs, loads and links."),
    "top": CommandEntry("ops.fleet.cli:top", "edge", "Show the workers and vehicles at a broker, live."),
    "trace": CommandEntry("analysis.trace:trace", "edge", "Write the stages of every frame of a run for Perfetto."),
    "view": CommandEntry("edge.view.finished_run:view", "view", "Open a finished run in Rerun."),
}

_NO_ACCESS = {errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
_GRPC_LOG = "GRPC_VERBOSITY"
_MODEL_COMMANDS = {"batch", "cloud", "demo", "model", "study"}  # Faster with huge pages.
_FRAME_COMMANDS = _MODEL_COMMANDS | {"edge", "send"}  # Allocate megabytes per frame.


class _Skylane(LazyGroup):
    """The commands; one that has moved names its new place."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See LazyGroup."""
        if cmd_name == "bench":
            raise click.UsageError(
                "'skylane bench' has moved: run `python -m bench` in a checkout of the repository; the emulator of links is "
                "`skylane link`"
            )
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=_Skylane,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="skylane")
def skylane() -> None:
    """Offload camera perception from a vehicle to the cloud and measure the latency of every stage."""


with_switch(skylane)


def main(arguments: Sequence[str] | None = None, program: click.Command = skylane, title: str = "skylane") -> None:
    """Runs a command line; an error that the user can fix is reported in one line, with exit code 1."""
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, replacing := _replacing(stream))
            setattr(sys, f"__{name}__", replacing)
    try:
        _run(arguments, program, title)
    except SystemExit as ended:
        from shared.threads import end_process_if_threads_hang  # keeps `skylane --help` fast

        end_process_if_threads_hang(ended.code if isinstance(ended.code, int) else 1)
        raise


class _AsciiStream(io.TextIOWrapper):
    """A stream of ASCII that does not call itself so: on one that does, click prints UTF-8."""

    def write(self, text: str) -> int:
        """Writes a text; replaces the characters that are not ASCII."""
        return super().write(text.encode("ascii", "replace").decode("ascii"))


def _replacing(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Returns a standard stream that replaces the characters that its encoding lacks, instead of failing."""
    if codecs.lookup(stream.encoding).name == "ascii":
        line_buffering, write_through = stream.line_buffering, stream.write_through
        return _AsciiStream(stream.detach(), "latin-1", line_buffering=line_buffering, write_through=write_through)
    if not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors="replace")
    elif stream.errors == "strict":  # Only bytes of file names that are not UTF-8 are left.
        stream.reconfigure(errors="backslashreplace")
    return stream


def _run(arguments: Sequence[str] | None, program: click.Command, title: str) -> None:
    os.environ.setdefault(_GRPC_LOG, "NONE")  # gRPC logs every failed connection attempt; it reads this at import.
    if arguments is None and sys.argv[1:2]:
        _configure_memory(sys.argv[1] if program is skylane else "model")
    try:
        code: Any = program.main(args=arguments, prog_name=title, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        sys.stderr.write(f"{title}: {message}\n")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str | None:
    """Returns the message of an error that the user can fix; None for a bug."""
    from shared.errors import SkylaneError  # imported only after a failure
    from shared.sanitize import printable_lines

    if isinstance(error, SkylaneError):
        return printable_lines(str(error))
    if isinstance(error, OSError) and error.errno in _NO_ACCESS and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}; choose a writable folder with free disk space"
    if isinstance(error, UnicodeEncodeError):  # Of a path; what is printed is replaced.
        text = printable_lines(error.object[:100])
        return f"this system's encoding, {error.encoding}, lacks a character of {text!r}: set LC_ALL=C.UTF-8"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the output cannot be written: No space left on device; make room, or choose another disk"
    return None


def _configure_memory(command: str) -> None:
    """Enables huge pages and retained memory, before a command allocates anything."""
    if command in _MODEL_COMMANDS:
        from shared.runtime import memory  # keeps `skylane --help` fast

        memory.reexec_with_huge_pages()
    if command in _FRAME_COMMANDS:
        from shared.runtime import memory  # keeps `skylane --help` fast

        memory.retain()
