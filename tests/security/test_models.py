"""Operators load models by name: no message can contain a path."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import UnknownNameError
from shared.messages.control import ControlError, ControlRequest, Verb, pack_request, unpack_request
from shared.models.repository import Repository

PATHS = (
    "../road-small",
    "/etc/passwd",
    "road-small/../../x",
    "..",
    ".",
    "./road-small",
    "~",
    "road-small\0",
    "file:///etc/passwd",
    "https://example.org/model",
    "road-small\n",
    "..\\x",
    "%2e%2e",
    "x" * 65,
)


@pytest.mark.parametrize("verb", [Verb.LOAD, Verb.UNLOAD, Verb.METADATA, Verb.READY])
@pytest.mark.parametrize("path", PATHS)
def test_a_control_request_with_a_path_is_rejected(verb: Verb, path: str) -> None:
    """An operator may choose among the models of the repository, not among the files of the host."""
    for named in ({"model": path}, {"model": "road-small", "version": path}):
        fields: dict[str, Any] = {"operator": "anna", "nonce": "n1", "verb": verb, **named}
        with pytest.raises(ControlError, match=r"field '(model|version)'"):
            unpack_request(pack_request(ControlRequest(**fields)), verb)


def test_a_control_request_with_a_name_is_accepted() -> None:
    """Otherwise a parser that rejects everything would pass the test above."""
    request = ControlRequest("anna", "n1", Verb.LOAD, "road-small", "2")
    assert unpack_request(pack_request(request), Verb.LOAD) == request


@pytest.mark.parametrize("path", PATHS)
def test_the_repository_rejects_paths(path: str, tmp_path: Path) -> None:
    """It checks names itself, independently of the message parser."""
    repository = Repository(tmp_path / "models")
    (tmp_path / "models" / "road-small").mkdir(parents=True)
    for name in ("models/road-small", "road-small"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "model.yaml").write_text("{}")
    assert repository.names() == ("road-small",)
    with pytest.raises(UnknownNameError, match="no model"):
        repository.find(path).file()
