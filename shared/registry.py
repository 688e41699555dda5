"""Plug-ins that are listed by import path and imported only when they are chosen."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from shared.errors import MissingExtraError, UnknownNameError


class Entry(NamedTuple):
    """The import path of a plug-in ("module:attribute") and the pip extra that installs its dependencies."""

    path: str
    extra: str


class Plugin(Protocol):
    """The fields that a table must have for each plug-in: an `Entry`, or a tuple with more fields."""

    @property
    def path(self) -> str:
        """Import path, "module:attribute"."""

    @property
    def extra(self) -> str:
        """The pip extra that installs its dependencies."""


def load(kind: str, table: Mapping[str, Plugin], name: str) -> Any:
    """Imports the plug-in called `name`.

    `kind` is the noun used in error messages, such as "engine".

    Raises:
        UnknownNameError: `table` has no such plug-in.
        MissingExtraError: a library that the plug-in imports is not installed.
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
