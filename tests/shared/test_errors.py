import sys
from types import ModuleType

import pytest

from shared.errors import MissingExtraError, install_command, suggestion


def test_a_missing_library_is_reported_with_the_install_command() -> None:
    """The command installs the extra."""
    assert "pip install 'skylane[bench]'" in str(MissingExtraError("'skylane report'", "pandas", "bench"))


def test_without_pip_another_installation_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Container images have no pip."""
    monkeypatch.setattr(sys, "path", [])
    message = str(MissingExtraError("'skylane report'", "bench", "bench"))
    assert "pip install" not in message
    assert message.endswith("use an installation with 'skylane[bench]'")


def test_the_install_command_does_not_warn_when_distutils_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import hook of setuptools warns then, and some libraries load distutils. In tests a warning is an error."""
    monkeypatch.setitem(sys.modules, "distutils", ModuleType("distutils"))
    assert "skylane[video]" in install_command("video")


def test_suggested_names_cannot_control_the_terminal() -> None:
    """They are names of topics of a foreign bag, for example."""
    assert suggestion("camera", ["camera\x1b[2J"]) == ": did you mean camera [2J?"
