"""`skylane trace`."""

from pathlib import Path

import click

from shared.errors import SkylaneError, unwritable_message
from shared.files import check_writable
from shared.sanitize import printable_lines

_MAX_PROBLEMS = 5


@click.command()
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write. [RUN/trace.json]")
def trace(run: Path, out: Path | None) -> None:
    """Write every frame of RUN with its stages on the vehicle and the worker as a trace, which https://ui.perfetto.dev opens.

    The page reads the file in the browser; nothing is uploaded.
    """
    from analysis.logs.log_rows import read_log  # noqa: PLC0415  Importing pandas is slow, and `--help` does not need it.
    from analysis.trace import write_trace  # noqa: PLC0415

    rows = read_log(run)
    path = out or run / "trace.json"
    check_writable(path, "--out")
    draft = path.with_name(f"{path.name}.new")
    try:
        with draft.open("w", encoding="utf-8") as file:
            frames = write_trace(rows, run, file)
        draft.replace(path)
    except OSError as error:
        raise SkylaneError(unwritable_message(path, error, "--out")) from error
    finally:
        draft.unlink(missing_ok=True)
    problems = [problem for found in rows.problems.values() for problem in found]
    for problem in problems[:_MAX_PROBLEMS]:
        click.echo(printable_lines(f"Problem: {problem}"), err=True)
    if len(problems) > _MAX_PROBLEMS:
        click.echo(
            f"{len(problems) - _MAX_PROBLEMS} more problems: `skylane report --check` lists all of them", err=True
        )
    left_out = len(rows.table) - frames
    without = f"; {left_out} without times left out" if left_out else ""
    click.echo(f"{path}: {frames} frames{without}; open it at https://ui.perfetto.dev")
