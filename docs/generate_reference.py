"""Writes cli.md and configuration.md of docs/reference, or of another folder, from the code: `make docs-reference`.

`tests/test_docs.py` fails while the files differ from what this script writes.
"""

import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from cloud.cli import serve
from cloud.config import CloudConfig
from edge.cli import play
from edge.config import EdgeConfig
from shared.flags import SHOWS_ALL
from skylane import cli

_REFERENCE = Path(__file__).parent / "reference"
_WIDTH = 100
_NOTICE = "<!-- Written by docs/generate_reference.py. Change the code, then run `make docs-reference`. -->"


def write_pages(folder: Path) -> None:
    """Writes the generated pages into a folder."""
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
    (folder / "configuration.md").write_text(configuration_page(), encoding="utf-8")


def cli_page() -> str:
    """Returns the help of every command as one Markdown page."""
    parts = [
        "# Command line",
        "",
        _NOTICE,
        "",
        "The text of each section is what `skylane COMMAND --help` prints, for the longest ones `--help-all`.",
        "",
    ]
    with cli.skylane.make_context("skylane", [], resilient_parsing=True) as root:
        for name, context in sorted(_contexts(root), key=itemgetter(0)):
            context.terminal_width = context.max_content_width = _WIDTH
            context.meta[SHOWS_ALL] = True
            parts += [f"## {name}", "", "```text", context.command.get_help(context), "```", ""]
    return "\n".join(parts)


def configuration_page() -> str:
    """Returns the keys of both configuration files as Markdown tables."""
    parts = [
        "# Configuration keys",
        "",
        _NOTICE,
        "",
        "`skylane edge play --config FILE` and `skylane cloud serve --config FILE` read YAML files. A flag overrides its key;",
        "keys that are rarely changed have none. An unknown key is an error that names the nearest known key.",
        "[configs/edge.yaml](../../configs/edge.yaml) and [configs/cloud.yaml](../../configs/cloud.yaml) show all keys with",
        "their defaults.",
        "",
    ]
    for title, section, command in (
        ("Vehicle: `skylane edge play`", EdgeConfig, play),
        ("Worker: `skylane cloud serve`", CloudConfig, serve),
    ):
        parts += [f"## {title}", "", "| key | flag | default | meaning |", "| --- | --- | --- | --- |"]
        parts += [_row(key, section, command) for key in section.model_fields]
        parts.append("")
    return "\n".join(parts)


def _contexts(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    yield context.command_path, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            if not command.hidden:
                yield from _contexts(command.make_context(name, [], parent=context, resilient_parsing=True))


def _row(key: str, section: type[BaseModel], command: click.Command) -> str:
    field: Any = section.model_fields[key]
    flag = next((f"`{max(each.opts, key=len)}`" for each in command.params if each.name == key), "–")
    default = _default(field.default) or field.json_schema_extra["shown"]
    return f"| `{key}` | {flag} | {default} | {field.description} |"


def _default(value: Any) -> str:
    if value in (None, ()):
        return ""
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if sys.argv[1:] else _REFERENCE)
