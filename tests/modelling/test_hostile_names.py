"""Names of classes and tensors that look like markup or contain control characters, where the commands print them."""

import io
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from modelling.model_cli import model as model_command
from modelling.tables import result_table
from shared.messages.results import Classification
from tests.support import onnx_models
from tests.support.stub_models import classifier

onnx: Any = import_module("onnx")

MARKUP = ("[red]x[/red]", "[/nothing]", "<script>alert(1)</script>")


def test_class_names_are_no_markup() -> None:
    """`[/x]` without a start would otherwise end the command with an error of the library."""
    card = classifier().card
    labels = type(card.labels)(MARKUP, ((1, 2, 3), (4, 5, 6), (7, 8, 9)))
    console = Console(width=100, record=True, file=io.StringIO())
    object.__setattr__(card, "labels", labels)
    console.print(result_table(Classification(class_ids=(0, 1, 2), scores=(0.5, 0.3, 0.2)), card))
    shown = console.export_text()
    for name in MARKUP:
        assert name in shown


@pytest.mark.parametrize("name", ["[/x]", "[red]a[/red]", "a\x1b]0;title\x07", "a\nb", "a\u202eb"])
def test_inspect_prints_the_names_of_tensors_as_they_are(tmp_path: Path, name: str) -> None:
    """A third-party file names its tensors as it likes: no markup, no terminal escapes."""
    content = onnx_models.model()
    content.graph.input[0].name = content.graph.node[0].input[0] = name
    path = tmp_path / "model.onnx"
    path.write_bytes(content.SerializeToString())
    done = CliRunner().invoke(model_command, ["inspect", str(path)])
    assert done.exception is None, done.output
    assert np.all([character.isprintable() or character == "\n" for character in done.output])
    if name.isprintable():
        assert name in done.output
