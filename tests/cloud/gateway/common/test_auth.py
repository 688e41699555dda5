"""Authentication by tokens, and the names of callers."""

from pathlib import Path

import pytest

from cloud.gateway.common.auth import TOKEN_VARIABLE, Authenticator, TokensError
from cloud.serving.errors import ApiError, ErrorCode

CAR = "c" * 32
GUEST = "g" * 32
PEER = "10.0.0.7"


@pytest.fixture(autouse=True)
def _no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def token_file(folder: Path, text: str) -> Path:
    """Writes a token file."""
    file = folder / "tokens"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(name="authenticator")
def _authenticator(tmp_path: Path) -> Authenticator:
    return Authenticator.from_file(token_file(tmp_path, f"# A comment.\n\ncar-1 {CAR}\n* {GUEST}\n"))


def test_without_tokens_any_name_is_accepted() -> None:
    """A caller without a name is named after its address."""
    authenticator = Authenticator.from_file(None)
    assert not authenticator.requires_token
    assert authenticator.authenticate(None, "car-7", PEER) == "car-7"
    assert authenticator.authenticate(None, None, PEER) == "client-10-0-0-7"


def test_a_token_determines_the_name(authenticator: Authenticator) -> None:
    """Claiming another vehicle's name must not take its share of the queue or receive its masks."""
    assert authenticator.authenticate(f"Bearer {CAR}", None, PEER) == "car-1"
    assert authenticator.authenticate(f"Bearer {CAR}", "car-1", PEER) == "car-1"
    assert authenticator.authenticate(f"bearer {CAR}", None, PEER) == "car-1"  # The scheme is case-insensitive.
    with pytest.raises(ApiError) as raised:
        authenticator.authenticate(f"Bearer {CAR}", "car-2", PEER)
    assert raised.value.code is ErrorCode.FORBIDDEN
    assert authenticator.authenticate(f"Bearer {GUEST}", "car-2", PEER) == "car-2"


@pytest.mark.parametrize(
    "header", [None, "", f"Basic {CAR}", "Bearer ", f"Bearer {CAR[:-1]}", f"Bearer {CAR}x", "Bearer \u00e9"]
)
def test_a_missing_or_wrong_token_is_rejected(authenticator: Authenticator, header: str | None) -> None:
    """The error is always the same: it must not reveal how close a guess was."""
    with pytest.raises(ApiError) as raised:
        authenticator.authenticate(header, "car-1", PEER)
    assert raised.value.code is ErrorCode.UNAUTHENTICATED


def test_a_name_that_cannot_be_part_of_a_topic_is_rejected(authenticator: Authenticator) -> None:
    """It would appear in logs, metric labels and frame ids."""
    with pytest.raises(ApiError, match="is not allowed") as raised:
        authenticator.authenticate(f"Bearer {GUEST}", "car/../1", PEER)
    assert raised.value.code is ErrorCode.INVALID


def test_the_token_in_the_environment_is_valid_for_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers receive secrets through the environment."""
    monkeypatch.setenv(TOKEN_VARIABLE, GUEST)
    authenticator = Authenticator.from_file(None)
    assert authenticator.requires_token
    assert authenticator.authenticate(f"Bearer {GUEST}", "car-9", PEER) == "car-9"


def test_an_empty_token_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that was not found is empty; access must not become open because of that."""
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with pytest.raises(TokensError, match="has 0 characters"):
        Authenticator.from_file(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("car-1\n", "is not NAME TOKEN"),
        ("car-1 short\n", "at least 16"),
        (f"car/1 {CAR}\n", "is not allowed"),
        (f"car-1 {CAR}\ncar-2 {CAR}\n", "line 2: the token is also that of car-1"),
        ("# Only a comment.\n", "holds no token"),  # A file without tokens must not mean open access.
    ],
)
def test_a_malformed_token_file_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    """Ignoring a malformed line would silently let the wrong callers in, or keep the right ones out."""
    with pytest.raises(Exception, match=message):
        Authenticator.from_file(token_file(tmp_path, text))


def test_a_missing_token_file_is_an_error(tmp_path: Path) -> None:
    """A mistyped path must not mean open access."""
    with pytest.raises(TokensError, match="cannot be read"):
        Authenticator.from_file(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_token_file_that_other_users_can_write_is_rejected(tmp_path: Path, mode: int) -> None:
    """They could add tokens of their own."""
    file = token_file(tmp_path, "car 0123456789abcdef\n")
    file.chmod(mode)
    with pytest.raises(TokensError, match=rf"is writable by other users \(mode {mode:o}\): run chmod 600"):
        Authenticator.from_file(file)
    file.chmod(0o640)
    assert Authenticator.from_file(file).requires_token
