"""Plug-ins by import path: a table names them, one loader brings them in when they are chosen."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from shared.errors import MissingExtraError, UnknownNameError


class Entry(NamedTuple):
    """Where a plug-in lives ("module:attribute") and the pip extra that brings what it imports."""

    path: str
    extra: str


class Plugin(Protocol):
    """What a table must tell of a plug-in; an Entry, or a tuple that tells more."""

    @property
    def path(self) -> str:
        """Where it lives: "module:attribute"."""

    @property
    def extra(self) -> str:
        """The pip extra that brings what it imports."""


def load(kind: str, table: Mapping[str, Plugin], name: str) -> Any:
    """Import the plug-in that `table` holds under `name`.

    `kind` is the noun used in messages ("engine", "source").

    Raises:
        UnknownNameError: `table` has no such name.
        MissingExtraError: a third-party library that the plug-in imports is not installed.
    """
    if name not in table:
        raise UnknownNameError(kind, name, table)
    entry = table[name]
    module_name, _, attribute = entry.path.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == module_name.partition(".")[0]:
            raise
        raise MissingExtraError(f"{kind} {name!r}", library, entry.extra) from error
    return getattr(module, attribute)
