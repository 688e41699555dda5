"""Plug-ins: tables of built-in ones by import path, and those that other distributions register as entry points.

A plug-in is imported only when it is chosen by its name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from shared.errors import MissingExtraError, SkylaneError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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


class PluginError(SkylaneError):
    """A plug-in of another distribution cannot be used; the message names the distribution."""


Row = TypeVar("Row", bound=Plugin)


class PluginTable(dict[str, Row]):
    """The built-in plug-ins of a kind by name; those of other distributions are looked up when they are named.

    `in` and `[name]` know the plug-ins of both. Iteration gives the rows that need no import: the built-in ones, and those
    that were looked up. The fields of an entry point's row are the attributes of the plug-in with the same names, such as
    `endpoint` of a transport, and otherwise the defaults.
    """

    def __init__(self, kind: str, group: str, row: type[Row], rows: Mapping[str, Row], *, prefix: str = "") -> None:
        """Makes a table.

        Args:
            kind: The noun in error messages, such as "engine".
            group: The group of the entry points.
            row: The type of the rows.
            rows: The built-in plug-ins.
            prefix: The start of the names of the entry points, if several tables share the group.
        """
        super().__init__(rows)
        self._kind = kind
        self._group = group
        self._row = row
        self._built_in = frozenset(rows)
        self._prefix = prefix

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self._registered(name))

    def __missing__(self, name: str) -> Row:
        registered = self._registered(name)
        if not registered:
            raise KeyError(name)
        self.check(name)
        self[name] = self._row_of(name, registered[0])
        return self[name]

    def names(self) -> tuple[str, ...]:
        """Returns the names of the built-in plug-ins and of those of other distributions; imports none."""
        others = (point.name.removeprefix(self._prefix) for point in _entry_points(self._group, self._prefix))
        return tuple(dict.fromkeys((*self, *others)))

    def is_external(self, name: str) -> bool:
        """Returns whether a plug-in of another distribution has this name."""
        return name not in self._built_in and bool(self._registered(name))

    def describe(self, name: str) -> str:
        """Returns kind, name and distribution of a plug-in of another distribution, for messages."""
        return f"{self._kind} {name!r} of {', '.join(map(_distribution, self._registered(name)))}"

    def check(self, name: str) -> None:
        """Raises a PluginError if a distribution registers the name of a built-in plug-in, or two the same name."""
        registered = self._registered(name)
        names = ", ".join(map(_distribution, registered))
        if name in self._built_in and registered:
            raise PluginError(
                f"{self._kind} {name!r}: {names} registers a plug-in with the name of a built-in one: uninstall it, or have "
                "it renamed"
            )
        if len(registered) > 1:
            raise PluginError(f"{self._kind} {name!r} is registered by {names}: uninstall all but one")

    def _registered(self, name: object) -> "list[EntryPoint]":
        return [point for point in _entry_points(self._group, self._prefix) if point.name == f"{self._prefix}{name}"]

    def _row_of(self, name: str, point: "EntryPoint") -> Row:
        try:
            plugin = point.load()
            fields: Iterable[str] = getattr(self._row, "_fields", ())
            given = {
                each: getattr(plugin, each) for each in fields if each not in Entry._fields and hasattr(plugin, each)
            }
            make: Callable[..., Row] = self._row
            return make(path=point.value, extra="", **given)
        except Exception as error:  # Whatever the code of another distribution raises.
            raise PluginError(
                f"{self._kind} {name!r} of {_distribution(point)} cannot be used: {type(error).__name__}: {error}: update or "
                "uninstall it"
            ) from error


def require(plugin: str, field: str, value: object, wanted: str, *, is_valid: bool) -> None:
    """Raises a PluginError for an invalid value of a plug-in; it names the plug-in, the field and the valid type."""
    if not is_valid:
        shape = getattr(value, "shape", None)
        shown = f"{getattr(value, 'dtype', '')} of shape {shape}" if shape else f"{value!r:.60}"
        raise PluginError(f"{plugin} gives {field} = {shown} ({type(value).__name__}): it must be {wanted}")


@contextmanager
def failures_of(plugin: str) -> Iterator[None]:
    """Turns any exception of a plug-in of another distribution into a PluginError that names it."""
    try:
        yield
    except SkylaneError:
        raise
    except Exception as error:  # Whatever the code of another distribution raises.
        raise PluginError(f"{plugin} failed: {type(error).__name__}: {error}: update or uninstall it") from error


@cache
def _entry_points(group: str, prefix: str) -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points  # noqa: PLC0415  `skylane --help` needs none.

    return tuple(point for point in entry_points(group=group) if point.name.startswith(prefix))


def _distribution(point: "EntryPoint") -> str:
    return "an unknown distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def load(kind: str, table: Mapping[str, Plugin], name: str) -> Any:
    """Imports the plug-in called `name`.

    `kind` is the noun used in error messages, such as "engine".

    Raises:
        UnknownNameError: `table` has no such plug-in.
        MissingExtraError: a library that the plug-in imports is not installed.
        PluginError: a plug-in of another distribution fails to import, or takes a name that is in use.
    """
    if name not in table:
        raise UnknownNameError(kind, name, names_of(table))
    if isinstance(table, PluginTable):
        table.check(name)
    entry = table[name]
    module_name, _, attribute = entry.path.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == module_name.partition(".")[0]:
            raise
        raise MissingExtraError(f"{kind} {name!r}", library, entry.extra) from error
    return attrgetter(attribute)(module)


def names_of(table: Iterable[str]) -> tuple[str, ...]:
    """Returns the names in a table, including those of plug-ins of other distributions."""
    return table.names() if isinstance(table, PluginTable) else tuple(table)
