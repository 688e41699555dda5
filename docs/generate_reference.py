"""Writes docs/reference/cli.md and docs/reference/configuration.md from the code: `make docs-reference`.

`tests/test_docs.py` fails while the files differ from what this script writes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import skylane
from cloud.cli import serve
from cloud.config import CloudConfig
from edge.cli import play
from edge.config import EdgeConfig

_REFERENCE = Path(__file__).parent / "reference"
_WIDTH = 100
_NOTICE = "<!-- Written by docs/generate_reference.py. Change the code, then run `make docs-reference`. -->"


def pages() -> dict[Path, str]:
    """Returns the text of each generated page by its path."""
    return {_REFERENCE / "cli.md": cli_page(), _REFERENCE / "configuration.md": configuration_page()}


def cli_page() -> str:
    """Returns the help of every command as one Markdown page."""
    parts = ["# Command line", "", _NOTICE, "", "The text of each section is what `skylane COMMAND --help` prints.", ""]
    for name, command in sorted(_commands(skylane.skylane, "skylane")):
        with click.Context(command, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH) as context:
            parts += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(parts)


def configuration_page() -> str:
    """Returns the keys of both configuration files as Markdown tables."""
    parts = [
        "# Configuration keys",
        "",
        _NOTICE,
        "",
        "`skylane edge play --config FILE` and `skylane cloud serve --config FILE` read YAML files. Every key has a flag, and",
        "the flag overrides the key. An unknown key is an error that names the nearest known key.",
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


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for each in command.list_commands(context):
                found = command.get_command(context, each)
                assert found is not None
                yield from _commands(found, f"{name} {each}")


def _row(key: str, section: type[BaseModel], command: click.Command) -> str:
    option = next(
        (each for each in command.params if isinstance(each, click.Option) and each.name == key),
        None,
    )
    flag = f"`{max(option.opts, key=len)}`" if option else ""
    text = " ".join((option.help or "").split()) if option else ""
    meaning, _, shown = text.removesuffix("]").rpartition(" [") if text.endswith("]") else (text, "", "")
    default = _default(section.model_fields[key].get_default(call_default_factory=True)) or shown
    return f"| `{key}` | {flag} | {default} | {meaning} |"


def _default(value: Any) -> str:
    if value in (None, (), PydanticUndefined):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
