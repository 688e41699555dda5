"""Authentication of calls by bearer tokens, and the names under which calls are accounted."""

import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from cloud.serving.errors import ApiError, ErrorCode, converting_errors
from shared.errors import SkylaneError, reason_of
from shared.files import open_file
from shared.messages.topics import sanitize_name, validate_name
from shared.network import endpoint

TOKEN_VARIABLE = endpoint.GATEWAY
ANYONE = "*"  # The owner of a token that is valid for any name.

_BEARER = "bearer "  # Case-insensitive (RFC 9110, 11.1).
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MIN_TOKEN_CHARACTERS = 16  # Shorter tokens can be guessed.


class TokensError(SkylaneError):
    """A token that is too short, or a token file that cannot be used."""


class Authenticator:
    """Checks bearer tokens and gives every call a name."""

    def __init__(self, names_by_token: Mapping[str, str]) -> None:
        """Without tokens, every call is accepted under any name."""
        self._names = {token.encode(): name for token, name in names_by_token.items()}

    @classmethod
    def from_file(cls, file: Path | None) -> "Authenticator":
        """Reads a file of `NAME TOKEN` lines, and the environment's SKYLANE_GATEWAY_TOKEN, which is valid for any name.

        Raises:
            TokensError: the file cannot be read, is writable by other users, or has a malformed line.
        """
        names: dict[str, str] = {}
        if (token := os.environ.get(TOKEN_VARIABLE)) is not None:  # An empty token is an error, not open access.
            names[_check_token(token, TOKEN_VARIABLE)] = ANYONE
        lines = _read_lines(file) if file else []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split()
            if len(parts) != 2:  # A name and a token.
                raise TokensError(f"{file}, line {number}: is not NAME TOKEN")
            name = parts[0] if parts[0] == ANYONE else validate_name("name", parts[0])
            token = _check_token(parts[1], f"{file}, line {number}")
            if names.get(token, name) != name:
                raise TokensError(
                    f"{file}, line {number}: the token is also that of {names[token]}: give each name its own token"
                )
            names[token] = name
        if file is not None and not names:  # Without tokens every call would be accepted.
            raise TokensError(
                f"{file} holds no token: write NAME TOKEN lines, or omit the file to accept calls without a token"
            )
        return cls(names)

    @property
    def requires_token(self) -> bool:
        """True if a call without a token fails."""
        return bool(self._names)

    def owns_token(self, name: str) -> bool:
        """Returns True if there is a token that is valid only for this name."""
        return name in self._names.values()

    def authenticate(self, authorization: str | None, claimed: str | None, peer: str) -> str:
        """Returns the name of a call: the claimed one, if its token allows that, or one made of its token or its peer.

        Args:
            authorization: the header's value, `Bearer TOKEN`.
            claimed: the vehicle's name according to the call.
            peer: the caller's address.

        Raises:
            ApiError: the token is missing or unknown, or does not allow the claimed name.
        """
        owner = self._owner(authorization) if self._names else ANYONE
        if claimed is not None:
            with converting_errors(ErrorCode.INVALID):
                validate_name("vehicle", claimed)
        if owner == ANYONE:
            return claimed or sanitize_name(f"client-{peer}").replace("_", "-")
        if claimed not in (None, owner):
            raise ApiError(ErrorCode.FORBIDDEN, f"the token belongs to {owner}: it does not allow the name {claimed}")
        return owner

    def _owner(self, authorization: str | None) -> str:
        if authorization is None or not authorization.lower().startswith(_BEARER):
            raise ApiError(ErrorCode.UNAUTHENTICATED, "no token: send the header 'Authorization: Bearer TOKEN'")
        received = authorization[len(_BEARER) :].strip().encode()
        owner = None
        for token, name in self._names.items():  # All tokens are compared, so that the time reveals nothing.
            if hmac.compare_digest(token, received):
                owner = name
        if owner is None:
            raise ApiError(ErrorCode.UNAUTHENTICATED, "this worker does not know the token: ask its operator for one")
        return owner


def _read_lines(path: Path) -> list[str]:
    try:
        with open_file(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & _WRITABLE_BY_OTHERS:
                raise TokensError(f"{path} is writable by other users (mode {mode:o}): run chmod 600 on it")
            return file.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokensError(f"{path}: the tokens cannot be read: {reason_of(error)}") from error


def _check_token(token: str, source: str) -> str:
    if len(token) < _MIN_TOKEN_CHARACTERS:
        raise TokensError(f"{source}: the token has {len(token)} characters: give at least {_MIN_TOKEN_CHARACTERS}")
    return token
