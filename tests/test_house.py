"""The arrows between the packages, and what the front door may load."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skylane
from shared.registry import Entry

ROOT = Path(__file__).parents[1]
# Who may import whom, beside itself.
ARROWS = {
    "shared": set(),
    "rosbag_tools": {"shared"},
    "edge": {"shared"},
    "cloud": {"shared"},
    "modelling": {"cloud", "rosbag_tools", "shared"},
    "bench": {"cloud", "edge", "modelling", "rosbag_tools", "shared"},
}
# What takes long to import, or is not on every vehicle.
HEAVY = (
    "cv2",
    "numpy",
    "tensorflow",
    "keras",
    "paho",
    "rich",
    "pydantic",
    "rosbags",
    "av",
    "msgpack",
    "msgspec",
    "yaml",
)
MODULES = sorted(path for package in ARROWS for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The full name of every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: house style is absolute imports"
            assert node.module is not None
            yield node.module


def loaded_by(statement: str) -> set[str]:
    """The top-level names of the modules that are loaded once `statement` has run in a fresh interpreter."""
    script = f"{statement}\nimport sys\nprint('\\n'.join({{name.partition('.')[0] for name in sys.modules}}))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    """Edge and cloud meet only on the wire: an import between them would end that unnoticed."""
    package = path.relative_to(ROOT).parts[0]
    forbidden = ARROWS.keys() - ARROWS[package] - {package}
    crossed = {name for name in imports(path) if name.partition(".")[0] in forbidden}
    assert not crossed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_a_room_not_a_house(path: Path) -> None:
    """What is over 400 lines holds more than one noun."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("package", ARROWS)
def test_importing_a_package_runs_nothing(package: str) -> None:
    """`__init__.py` holds a docstring: anything more is loaded by everyone, used by some."""
    for path in (ROOT / package).rglob("__init__.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert len(body) == 1, path
        assert isinstance(body[0], ast.Expr)
        assert isinstance(body[0].value, ast.Constant)
        assert isinstance(body[0].value.value, str), path


def test_a_vehicle_loads_no_tensorflow() -> None:
    """It is not installed there."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in MODULES
        if path.is_relative_to(ROOT / "edge") and path.name != "__init__.py"
    ]
    assert names
    assert not loaded_by("\n".join(f"import {name}" for name in names)) & {"tensorflow", "keras", "cloud", "modelling"}


def test_help_loads_nothing_heavy() -> None:
    """`skylane --help` must answer at once; OpenCV and TensorFlow alone take seconds."""
    statement = (
        "import contextlib, io, skylane\n"
        "with contextlib.redirect_stdout(io.StringIO()) as help, contextlib.suppress(SystemExit):\n"
        "    skylane.main(['--help'])\n"
        "assert 'Commands:' in help.getvalue()"
    )
    assert not loaded_by(statement) & set(HEAVY)


@pytest.mark.parametrize("command", skylane.COMMANDS)
def test_every_command_is_there_and_says_what_it_does(command: str) -> None:
    """The front door names its commands by path: a wrong one would show only when somebody calls it."""
    ended = subprocess.run(
        [sys.executable, "-m", "skylane", command, "--help"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    assert re.match(rf"Usage: \S+ {command} ", ended.stdout)


def test_plug_in_tables_name_what_exists() -> None:
    """A plug-in's path is a string: no other tool sees that its module moved."""
    tables = {
        (str(path.relative_to(ROOT)), node.args[0].value)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == Entry.__name__
        and isinstance(node.args[0], ast.Constant)
    }
    assert tables
    for where, target in sorted(tables):
        module, _, attribute = str(target).partition(":")
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        assert path.is_file(), (where, target)
        defined = {
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        assert attribute in defined, (where, target)
