"""Defaults, limits and choices of `edge play` and `cloud serve` stand in one place: the keys of the configuration."""

import ast
import inspect
from collections.abc import Collection
from types import ModuleType
from typing import Any, get_args

import click
import pytest

import cloud.cli
import edge.cli
from cloud.config import CloudConfig
from edge.config import Arrivals, EdgeConfig
from edge.presenting.presenter import PRESENTERS
from edge.sinks.sink import SINKS, VideoCodec
from edge.transports.transport import TRANSPORTS
from edge.view.viewer import VIEWERS
from edge.workers.dispatcher import DISPATCHERS
from shared.config import Section
from shared.flags import override
from shared.imaging.bit_depth import Bits
from shared.imaging.codec import MASK_CODECS
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.inference.table import AUTO, ENGINES
from shared.logs import LEVELS, LogFormat
from shared.models.manifest import Precision
from shared.reuse.gate import METHODS

COMMANDS: dict[str, tuple[click.Command, type[Section]]] = {
    "edge play": (edge.cli.play, EdgeConfig),
    "cloud serve": (cloud.cli.serve, CloudConfig),
}
OPTIONS = [
    pytest.param(option, section.model_fields[str(option.name)], id=f"{name} {option.opts[-1]}")
    for name, (command, section) in COMMANDS.items()
    for option in command.params
    if option.name in section.model_fields
]
TABLES: dict[str, Collection[str]] = {
    "transport": TRANSPORTS,
    "dispatch": DISPATCHERS,
    "codec": IMAGE_CODECS,
    "gate": METHODS,
    "present": PRESENTERS,
    "view": VIEWERS,
    "mask_codec": MASK_CODECS,
    "resize": [*Resize],
    "arrivals": [*Arrivals],
    "sinks": SINKS,
    "video_codec": [*VideoCodec],
    "engine": [AUTO, *ENGINES],
    "precision": [*Precision],
    "log_level": LEVELS,
    "log_format": [*LogFormat],
    "bits": get_args(Bits),
    "resize_at": ["edge", "cloud"],
    "mask_size": ["model", "frame"],
}


@pytest.mark.parametrize(("command", "section"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_without_flags_has_the_defaults_of_the_configuration(
    command: click.Command, section: type[Section], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No option has a default of its own, which would replace the values of a file."""
    for variable in ("SKYLANE_BROKER", "SKYLANE_CERTS"):
        monkeypatch.delenv(variable, raising=False)
    flags = command.make_context("command", ["source"] * (section is EdgeConfig)).params
    assert override(section(), {key: flags.get(key) for key in section.model_fields}) == section()


@pytest.mark.parametrize(("option", "field"), OPTIONS)
def test_the_help_shows_the_default_of_the_key(option: click.Option, field: Any) -> None:
    """Where the value says too little, such as None, the key has a text instead."""
    shown = field.json_schema_extra["shown"]
    default = field.default
    if isinstance(default, bool):
        shown = ("off", "on")[default] if option.secondary_opts else ""
    elif not shown and default not in (None, ()):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    assert option.help == (f"{field.description} [{shown}]" if shown else field.description)


@pytest.mark.parametrize("module", [edge.cli, cloud.cli], ids=lambda module: module.__name__)
def test_a_command_line_has_no_defaults_of_its_own(module: ModuleType) -> None:
    """Neither as an argument nor in a help text."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        assert not (isinstance(node, ast.keyword) and node.arg in ("default", "show_default"))
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("]"))


@pytest.mark.parametrize(("option", "field"), OPTIONS)
def test_an_option_offers_exactly_the_entries_of_its_table(option: click.Option, field: Any) -> None:
    """A new codec or engine needs no change of the command line."""
    del field
    choices = list(option.type.choices) if isinstance(option.type, click.Choice) else None
    table = TABLES.get(str(option.name))
    assert choices == (None if table is None else [str(name) for name in table])
