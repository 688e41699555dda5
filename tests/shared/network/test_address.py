import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SkylaneError
from shared.network.address import Address
from shared.network.endpoint import EndpointError


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "username"),
    [
        ("mqtt://broker", "broker", 1883, False, None),
        ("mqtts://broker", "broker", 8883, True, None),
        ("broker:1999", "broker", 1999, False, None),
        ("mqtt://car-1@10.0.0.2:1884", "10.0.0.2", 1884, False, "car-1"),
        ("mqtt://car%401@broker/", "broker", 1883, False, "car@1"),
        ("mqtt://[::1]:1883", "::1", 1883, False, None),
    ],
)
def test_valid_urls_are_parsed(url: str, host: str, port: int, username: str | None, *, tls: bool) -> None:
    """Scheme, user and port are optional."""
    address = Address.parse(url)
    assert (address.host, address.port, address.tls, address.username) == (host, port, tls, username)
    assert (reparsed := Address.parse(str(address))).host == host
    assert reparsed.port == port


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mqtt://",
        "http://broker",
        "mqqts://broker:8883",
        "ssl://broker:8883",
        "//broker:1883",
        "mqtt://a/b",
        "mqtt://bro\nker",
        "mqtt://bro ker",
        "mqtt://[::1",
        "broker:1883\r",
    ],
)
def test_an_invalid_url_is_refused_with_an_example(url: str) -> None:
    """The error shows what to write."""
    with pytest.raises(SkylaneError, match="write mqtt://host:1883"):
        Address.parse(url)


@pytest.mark.parametrize(
    "url",
    ["mqtt://u:secret@host", "http://u:secret@host", "mqtt://u:secret@host:x", "mqtt://u:secret@", "u:secret@host:x"],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    """Error messages end up in logs, and command lines in the process list."""
    with pytest.raises(SkylaneError, match="broker address") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)


def test_the_password_comes_from_the_environment_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither `str` nor `repr` contains it."""
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "secret")
    address = Address.parse("mqtt://car@host")
    assert address.password == "secret"
    assert "secret" not in f"{address} {address!r}"


def test_the_password_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Container secrets are files; child processes inherit the environment."""
    secret = tmp_path / "password"
    secret.write_text(" pass word\n")
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD_FILE", str(secret))
    assert Address.parse("mqtt://car@host").password == " pass word"


def test_a_password_file_without_a_writer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node would wait for it for ever, and say nothing."""
    os.mkfifo(tmp_path / "password")
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(SkylaneError, match="it is a FIFO: give a regular file"):
        Address.parse("mqtt://car@host")


@pytest.mark.parametrize("url", ["mqtt://host:99999", "mqtt://host:x", "mqtt://host:0"])
def test_the_error_of_a_port_says_which_ports_there_are(url: str) -> None:
    """The rest of the address is right."""
    with pytest.raises(SkylaneError, match="with a port from 1 to 65535"):
        Address.parse(url)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), (b"\n", "is empty"), (b"secret\xff", "is not UTF-8 text")]
)
def test_an_unusable_password_file_is_named_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, reason: str
) -> None:
    """Connecting without a password would fail with "not authorized", which does not mention the file."""
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD_FILE", str(path))
    with pytest.raises(SkylaneError, match=f"SKYLANE_BROKER_PASSWORD_FILE: .*password {reason}") as caught:
        Address.parse("mqtt://car@host")
    assert "secret" not in str(caught.value)


def test_a_password_and_a_password_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unclear which of them applies."""
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "secret")
    with pytest.raises(SkylaneError, match="are both set"):
        Address.parse("mqtt://car@host")


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """Only `SkylaneError` may be raised."""
    try:
        assert Address.parse(text).host
    except SkylaneError as error:
        assert error.__cause__ is None or isinstance(error.__cause__, (KeyError, ValueError, EndpointError))  # noqa: PT017 (both results are valid)
