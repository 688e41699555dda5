"""Who may call, and as whom."""

from pathlib import Path

import pytest

from cloud.gateway.common.auth import TOKEN_VARIABLE, Authenticator, TokensError
from cloud.gateway.common.errors import Kind, RefusedError

CAR = "c" * 32
GUEST = "g" * 32


@pytest.fixture(name="callers")
def _callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authenticator:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    file = tmp_path / "tokens"
    file.write_text(f"# Who may call.\n\ncar-1 {CAR}\n* {GUEST}\n", encoding="utf-8")
    return Authenticator.read(file)


def test_without_tokens_anyone_calls_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a broker that lets anyone in; whoever gives no name is known by the address."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    callers = Authenticator.read(None)
    assert not callers.requires_token
    assert callers.name(None, "car-7", "10.0.0.7") == "car-7"
    assert callers.name(None, None, "10.0.0.7") == "client-10-0-0-7"


def test_a_token_is_a_name(callers: Authenticator) -> None:
    """Nobody takes another's turn in the queue, or gets another's masks, by saying so."""
    assert callers.name(f"Bearer {CAR}", None, "10.0.0.7") == "car-1"
    assert callers.name(f"Bearer {CAR}", "car-1", "10.0.0.7") == "car-1"
    assert callers.name(f"bearer {CAR}", None, "10.0.0.7") == "car-1"  # RFC 9110: the scheme in any case.
    with pytest.raises(RefusedError) as raised:
        callers.name(f"Bearer {CAR}", "car-2", "10.0.0.7")
    assert raised.value.kind is Kind.FORBIDDEN
    assert callers.name(f"Bearer {GUEST}", "car-2", "10.0.0.7") == "car-2"


@pytest.mark.parametrize(
    "given", [None, "", f"Basic {CAR}", "Bearer ", f"Bearer {CAR[:-1]}", f"Bearer {CAR}x", "Bearer \u00e9"]
)
def test_whoever_has_no_token_stays_outside(callers: Authenticator, given: str | None) -> None:
    """One refusal for all of it: it must not tell how near a guess was."""
    with pytest.raises(RefusedError) as raised:
        callers.name(given, "car-1", "10.0.0.7")
    assert raised.value.kind is Kind.UNAUTHENTICATED


def test_a_name_that_no_topic_could_carry_is_refused(callers: Authenticator) -> None:
    """It would stand in logs, labels of metrics and frame ids."""
    with pytest.raises(RefusedError, match="is not allowed") as raised:
        callers.name(f"Bearer {GUEST}", "car/../1", "10.0.0.7")
    assert raised.value.kind is Kind.INVALID


def test_the_environment_holds_a_token_for_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container gets its secret so."""
    monkeypatch.setenv(TOKEN_VARIABLE, GUEST)
    callers = Authenticator.read(None)
    assert callers.requires_token
    assert callers.name(f"Bearer {GUEST}", "car-9", "10.0.0.7") == "car-9"


def test_an_empty_token_in_the_environment_is_no_open_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sets it means to lock; a secret that was not found is empty."""
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with pytest.raises(TokensError, match="has 0 characters"):
        Authenticator.read(None)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("car-1\n", "is not NAME TOKEN"),
        ("car-1 short\n", "at least 16"),
        (f"car/1 {CAR}\n", "is not allowed"),
        (f"car-1 {CAR}\ncar-2 {CAR}\n", "line 2: is the token of car-1 too"),
    ],
)
def test_a_file_that_lets_the_wrong_ones_in_is_refused_at_the_start(tmp_path: Path, text: str, wrong: str) -> None:
    """A line that is not understood would be a door left open, or shut, in silence."""
    file = tmp_path / "tokens"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(Exception, match=wrong):
        Authenticator.read(file)
    with pytest.raises(TokensError, match="cannot be read"):
        Authenticator.read(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """They could let themselves in."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    file = tmp_path / "tokens"
    file.write_text("car 0123456789abcdef\n", encoding="utf-8")
    file.chmod(mode)
    with pytest.raises(TokensError, match=rf"can write tokens into it \(mode {mode:o}\): chmod 600 it"):
        Authenticator.read(file)
    file.chmod(0o640)
    assert Authenticator.read(file).requires_token


def test_a_file_without_tokens_does_not_let_everybody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names a file wants the door locked, also when its last line was taken out."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    file = tmp_path / "tokens"
    file.write_text("# Who may call.\n", encoding="utf-8")
    with pytest.raises(TokensError, match="holds no token"):
        Authenticator.read(file)
