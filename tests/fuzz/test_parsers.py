import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.fuzz.corpus import TARGETS, corpus, inputs, target
from tests.fuzz.parsers import DECODERS, PARSERS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cloud", "edge", "ops/broker", "rosbag_tools", "shared")  # What reads bytes of others.


def decoders_of(path: Path) -> set[str]:
    """Returns the functions of DECODERS that a module uses."""
    text = path.read_text()
    if not any(decoder.rpartition(".")[2] in text for decoder in DECODERS):
        return set()
    names = (ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute | ast.Name))
    return {decoder for name in names for decoder in DECODERS if name == decoder or name.endswith(f".{decoder}")}


def test_every_parsing_module_is_listed() -> None:
    """A new parser must get a fuzz target or a reason."""
    found = {
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if decoders_of(path)
    }
    assert found == set(PARSERS)


@pytest.mark.parametrize("name", TARGETS)
def test_target_reaches_its_listed_modules(name: str) -> None:
    """Its seeds and corpus must enter each module."""
    listed = {module for module, by in PARSERS.items() if by == name}
    assert listed
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    fuzz_target = target(name)
    stored = [path.read_bytes() for path in inputs(corpus(name))] if corpus(name).is_dir() else []
    sys.setprofile(note)
    try:
        for data in (*fuzz_target.seeds(), *stored):
            fuzz_target.run(data)
    finally:
        sys.setprofile(None)
    assert {module for module in listed if str(ROOT / module) not in entered} == set()


def test_every_entry_is_a_target_or_a_reason() -> None:
    """A misspelt name would fuzz nothing."""
    assert {by for by in PARSERS.values() if not by.startswith("(")} == set(TARGETS)
