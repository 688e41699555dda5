"""Importing `skylane`: it is fast, knows its names, and says which file of the user is in the way."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import skylane

ROOT = Path(__file__).parents[2]


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder, whose own modules come first."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_every_public_name_exists() -> None:
    """A wrong import path would fail only when the name is used."""
    for name in skylane.__all__:
        assert getattr(skylane, name).__doc__
    assert {*skylane.__all__, "__version__"} <= set(dir(skylane))
    assert skylane.__version__ == version("skylane")
    with pytest.raises(AttributeError, match="no attribute 'opne_run'"):
        _ = skylane.opne_run


def test_importing_it_imports_nothing_else(tmp_path: Path) -> None:
    """A program that only reads bags must not wait for TensorFlow or pandas."""
    code = "import sys, skylane; print({name.partition('.')[0] for name in sys.modules})"
    loaded = python(code, tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    for library in ("numpy", "pandas", "tensorflow", "pydantic", "shared", "edge", "click"):
        assert f"'{library}'" not in loaded.stdout


@pytest.mark.parametrize("name", ["analysis.py", "shared/__init__.py", "edge.py"])
def test_a_file_of_the_user_in_the_way_is_named(name: str, tmp_path: Path) -> None:
    """`analysis.py` is what many users call their own program; without a check, an import somewhere inside would fail."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("value = 1\n")
    for code in ("import skylane", f"import {name.partition('/')[0].removesuffix('.py')}, skylane"):
        ended = python(code, tmp_path)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1].startswith(f"ImportError: {path} is in the way of Skylane's package ")


@pytest.mark.parametrize("name", ["data/__init__.py", "shared/notes.txt", "my_analysis.py"])
def test_other_files_are_not_in_the_way(name: str, tmp_path: Path) -> None:
    """Neither is a folder without code: Python prefers a package to it."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    ended = python("import skylane; skylane.SkylaneError", tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_a_missing_library_is_reported_with_its_extra(tmp_path: Path) -> None:
    """`ModuleNotFoundError: pandas` would not say what to install."""
    ended = python("import sys; sys.modules['pandas'] = None; import skylane; skylane.open_run('runs/demo')", tmp_path)
    assert "skylane 'open_run' needs pandas, which is not installed: pip install 'skylane[edge,report]'" in ended.stderr
