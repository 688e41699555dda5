"""The list of parsers, held against the code."""

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.fuzz.corpus import TARGETS, corpus, inputs, target
from tests.fuzz.parsers import DECODERS, PARSERS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cloud", "edge", "rosbag_tools", "shared")  # What runs in a vehicle and in a worker.


def decoders_of(path: Path) -> set[str]:
    """Which of DECODERS a module calls or hands on."""
    named = (
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    )
    return {decoder for name in named for decoder in DECODERS if name == decoder or name.endswith(f".{decoder}")}


def test_every_module_that_parses_is_in_the_list() -> None:
    """A new parser must not go without a fuzzer because nobody thought of it."""
    found = {
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if decoders_of(path)
    }
    assert found == set(PARSERS)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reaches_the_modules_that_are_listed_for_it(name: str) -> None:
    """With its seeds and its corpus alone; what is fuzzed is what the list says."""
    listed = {module for module, by in PARSERS.items() if by == name}
    assert listed
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    module = target(name)
    kept = [path.read_bytes() for path in inputs(corpus(name))] if corpus(name).is_dir() else []
    sys.setprofile(note)
    try:
        for data in (*module.seeds(), *kept):
            module.run(data)
    finally:
        sys.setprofile(None)
    assert {each for each in listed if str(ROOT / each) not in entered} == set()


def test_every_entry_is_a_target_or_a_reason() -> None:
    """A name that is misspelt would fuzz nothing."""
    assert {by for by in PARSERS.values() if not by.startswith("(")} == set(TARGETS)
