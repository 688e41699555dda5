"""Authenticator: who a call is from, by its token or by the address of its peer."""

import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cloud.gateway.common.errors import Kind, RefusedError
from shared.errors import SkylaneError
from shared.messages.topics import checked, sanitize_name
from shared.network import env_names

TOKEN_VARIABLE = env_names.GATEWAY
ANYONE = "*"  # In the place of a name: the bearer may speak for any vehicle.

_BEARER = "bearer "  # In any case (RFC 9110, 11.1).
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LEAST_TOKEN = 16  # Characters; a shorter one can be guessed.


class TokensError(SkylaneError):
    """A file of tokens that cannot be read."""


class Caller(NamedTuple):
    """Who a call is from."""

    name: str  # As it is accounted under.
    address: str  # Of its peer, without the port.


class Authenticator:
    """Who may call, and as whom."""

    def __init__(self, names_by_token: Mapping[str, str]) -> None:
        """Without any token anyone may call, as anyone."""
        self._names = {token.encode(): name for token, name in names_by_token.items()}

    @classmethod
    def read(cls, file: Path | None) -> "Authenticator":
        """Those of a file, one `NAME TOKEN` a line, and of the environment's SKYLANE_GATEWAY_TOKEN, for any name.

        Raises:
            TokensError: the file cannot be read, others may write it, or a line is not that.
        """
        names: dict[str, str] = {}
        if (token := os.environ.get(TOKEN_VARIABLE)) is not None:  # Empty, it was meant to lock.
            names[_token(token, TOKEN_VARIABLE)] = ANYONE
        lines = _lines(file) if file else []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split()
            if len(parts) != 2:  # noqa: PLR2004  A name and a token.
                raise TokensError(f"{file}, line {number}: is not NAME TOKEN")
            name = parts[0] if parts[0] == ANYONE else checked("name", parts[0])
            token = _token(parts[1], f"{file}, line {number}")
            if names.get(token, name) != name:
                raise TokensError(f"{file}, line {number}: is the token of {names[token]} too: give each its own")
            names[token] = name
        if file is not None and not names:  # Without any, everybody would be let in.
            raise TokensError(
                f"{file} holds no token: write a NAME TOKEN a line, or leave the file out to let anyone in"
            )
        return cls(names)

    @property
    def requires_token(self) -> bool:
        """Whether a call without a token is refused."""
        return bool(self._names)

    def has_token(self, name: str) -> bool:
        """Whether a token is this name's alone."""
        return name in self._names.values()

    def name(self, authorization: str | None, claimed: str | None, peer: str) -> str:
        """The name a call is accounted under: the one it claims, if it may, or one made of its token's or its peer's.

        `authorization`: the header, `Bearer TOKEN`. `claimed`: the vehicle that it says it is. `peer`: its address.

        Raises:
            RefusedError: no such token, or the claimed name is not the token's.
        """
        own = self._own(authorization) if self._names else ANYONE
        if claimed is not None:
            try:
                checked("vehicle", claimed)
            except SkylaneError as error:
                raise RefusedError(Kind.INVALID, str(error)) from error
        if own == ANYONE:
            return claimed or sanitize_name(f"client-{peer}").replace("_", "-")
        if claimed not in (None, own):
            raise RefusedError(Kind.FORBIDDEN, f"the token is {own}'s: it cannot speak as {claimed}")
        return own

    def _own(self, authorization: str | None) -> str:
        if authorization is None or not authorization.lower().startswith(_BEARER):
            raise RefusedError(Kind.UNAUTHENTICATED, "no token: send the header 'Authorization: Bearer TOKEN'")
        given = authorization[len(_BEARER) :].strip().encode()
        found = None
        for token, name in self._names.items():  # All are compared, so that time tells nothing of them.
            if hmac.compare_digest(token, given):
                found = name
        if found is None:
            raise RefusedError(Kind.UNAUTHENTICATED, "the token is none of this worker's: ask its operator for one")
        return found


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & _OTHERS_WRITE:
                raise TokensError(
                    f"{file}: others than its owner can write tokens into it (mode {mode:o}): chmod 600 it"
                )
            return opened.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokensError(f"{file}: the tokens cannot be read: {error}") from error


def _token(token: str, where: str) -> str:
    if len(token) < _LEAST_TOKEN:
        raise TokensError(f"{where}: the token has {len(token)} characters: give at least {_LEAST_TOKEN}")
    return token
