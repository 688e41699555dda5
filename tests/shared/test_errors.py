import sys

import pytest

from shared.errors import MissingExtraError


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    """The extra is what a user can install."""
    assert "pip install 'skylane[bench]'" in str(MissingExtraError("'skylane report'", "pandas", "bench"))


def test_an_image_without_pip_does_not_advise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`skylane report` in a container: its results are copied out, and read where Skylane is installed."""
    monkeypatch.setitem(sys.modules, "pip", None)
    told = str(MissingExtraError("'skylane report'", "bench", "bench"))
    assert "pip install" not in told
    assert told.endswith("use an installation with 'skylane[bench]'")
