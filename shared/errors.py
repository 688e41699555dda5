"""Errors that a user can fix. Any other exception is a bug."""

import errno
import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.machinery import PathFinder

from shared.package_data import IS_CHECKOUT
from shared.sanitize import printable


class SkylaneError(Exception):
    """Base class of every error that a user can fix.

    The message states in one line what was given, what is wrong and what to do. Subclasses keep the facts as
    attributes.
    """


class MissingExtraError(SkylaneError):
    """A feature needs a library that is not installed."""

    def __init__(self, part: str, library: str, extra: str) -> None:
        self.part = part
        self.library = library
        self.extra = extra
        super().__init__(f"{part} needs {library}, which is not installed: {install_hint(extra)}")


def install_command(extras: str) -> str:
    """Returns the command that installs some extras."""
    return f"pip install 'skylane[{extras}]'"


def install_hint(extras: str) -> str:
    """Returns the remedy for missing extras, as the end of a message."""
    if PathFinder.find_spec("pip") is None:  # The import hook of setuptools for pip warns once distutils is loaded.
        return f"the container images leave it out and have no pip; use an installation with 'skylane[{extras}]'"
    return install_command(extras) + (", or 'make dev' in the checkout" if IS_CHECKOUT else "")


class UnknownNameError(SkylaneError):
    """A name is not in the table of known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        super().__init__(f"no {kind} {name!r}{suggestion(name, self.known)}{hint}")


def reason_of(error: Exception) -> str:
    """Returns the problem that an error describes, without the number and the path that an OSError adds."""
    if isinstance(error, FileExistsError):
        return f"{error.filename} exists and is not a folder"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def unwritable_message(path: object, error: OSError, flag: str) -> str:
    """Returns the error message for a path that cannot be written.

    `flag` is the option that sets the path, such as `--out`.
    """
    remedy = "make room or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{path} cannot be written: {reason_of(error)}: {remedy}choose another {flag}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name: similar names, or all names if none is similar."""
    names = sorted(map(printable, known))
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": choose one of {', '.join(names)}" if names else ": there are none"


# Places in a library's source, such as "/src/graph/model.cc:256 onnxruntime::Model::Model(const Path&, int) ".
_SOURCE = re.compile(
    r"\[enforce fail at [^]]*\][ .]*|(?:[A-Za-z]:\\|/|src/)[^\s:]+\.(?:cc|cpp|cu|cuh|h|hpp):\d+:?\s*"
    r"(?:[^()\n]*::[^()\n]*\((?:[^()]|\([^()]*\))*\)(?:::\S+)?(?: const)?(?: \[with [^]]*\])?\s+|[^\s()]+::\S+ )?"
)
_PREAMBLE = re.compile(  # Lines before the reason.
    r"Graph execution error:|Detected at node |Node: |<stack traces unavailable>|File \"|Exception from|Check |Summary:"
    r"|While validating|FrontEnd API failed|Model wasn't fully converted|Loading input model|.* failed at$"
)
_SHOWN_CHARACTERS = 600
_READ_CHARACTERS = 8000


def error_reason(error: Exception) -> str:
    """Returns the reason in a library's error message, one line without the places in the library's source."""
    text = str(getattr(error, "message", None) or error).rpartition("Exception encountered: ")[2]
    lines = [line.strip() for line in _SOURCE.sub("", text[:_READ_CHARACTERS]).splitlines() if line.strip()]
    reasons = [line for line in lines if not _PREAMBLE.match(line)] or lines or [type(error).__name__]
    return printable(reasons[0][:_SHOWN_CHARACTERS])
