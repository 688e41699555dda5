import sys

import pytest

from shared.errors import MissingExtraError


def test_a_missing_library_is_reported_with_the_install_command() -> None:
    """The command installs the extra."""
    assert "pip install 'skylane[bench]'" in str(MissingExtraError("'skylane report'", "pandas", "bench"))


def test_without_pip_another_installation_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Container images have no pip."""
    monkeypatch.setitem(sys.modules, "pip", None)
    message = str(MissingExtraError("'skylane report'", "bench", "bench"))
    assert "pip install" not in message
    assert message.endswith("use an installation with 'skylane[bench]'")
