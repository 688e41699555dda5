"""Finds the files in which an ONNX file keeps weights ("external data"), without the onnx package, and checks them.

A model that has such files is a folder with one `.onnx` and its weights, so that the manifest's hash covers all of them.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import NamedTuple

from shared.encoding.bounded_protobuf import ProtobufError, fields
from shared.inference.errors import EngineError

MAX_FIELDS = 2_000_000  # Fields of the graph that are looked at: ten times as many as the largest networks have.
MAX_NESTING = 64  # Messages within messages; graphs of branches and loops nest a few.

# The messages of onnx.proto that lead to a tensor's external_data, by message and field number.
_FOLLOWED = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        10: "TensorProto",
        6: "GraphProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = ("TensorProto", 13), ("TensorProto", 14)
_EXTERNAL = 1  # The value of data_location for external data.
_LOCATION_KEY = b"location"  # Every external tensor contains it.


class _ExternalData(NamedTuple):
    location: str
    offset: int
    length: int  # 0: to the end of the file.


def checked_onnx_file(path: Path) -> Path:
    """Returns the `.onnx` file of a model: `path` itself, or the one in the folder `path`.

    Raises:
        EngineError: the folder has no or several, or weights are missing or outside of `path`.
    """
    file = path
    if path.is_dir():
        found = sorted(path.glob("*.onnx"))
        if len(found) != 1:
            raise EngineError(path, f"holds {len(found)} .onnx files: give a folder with one and its weights")
        file = found[0]
    names = weight_files(file)
    if names and file == path:
        raise EngineError(
            path,
            f"keeps weights in {', '.join(names)[:200]}, which the hash of this file does not cover: "
            f"let `skylane model inspect {path.name} --write FOLDER` copy them into one folder",
        )
    return file


def weight_files(file: Path) -> tuple[str, ...]:
    """Returns the paths of the other files with weights of an `.onnx` file, relative to its folder, sorted.

    Raises:
        EngineError: the file is unreadable, or its weights are missing, too short, or outside of its folder.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise EngineError(file, f"cannot be read ({error.strerror})") from error
    if _LOCATION_KEY not in data:
        return ()
    try:
        entries = set(_Scan().external_data(memoryview(data)))
    except (ProtobufError, ValueError) as error:
        raise EngineError(file, f"is no ONNX file that can be read: {error}") from error
    for each in sorted(entries):
        _check(file, each)
    return tuple(sorted({each.location for each in entries}))


def _check(file: Path, data: _ExternalData) -> None:
    """Raises EngineError if weights are missing, too short, or outside of the file's folder."""
    shown = ascii(data.location[:120])
    parts = PurePosixPath(data.location)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or not data.location.isprintable():
        raise EngineError(
            file, f"keeps weights in {shown}, which is no path inside its folder: save it with its weights beside it"
        )
    path = file.parent / parts
    try:
        status = path.stat()
        inside = path.resolve().is_relative_to(file.parent.resolve())
    except FileNotFoundError as error:
        raise EngineError(
            file, f"keeps weights in {shown}, which is missing: put it beside {file.name}, under this name"
        ) from error
    except OSError as error:
        raise EngineError(file, f"keeps weights in {shown}, which cannot be read ({error.strerror})") from error
    if not inside or not S_ISREG(status.st_mode):
        raise EngineError(
            file, f"keeps weights in {shown}, which is no file inside its folder (a link leads out): copy it there"
        )
    end = data.offset + data.length
    if end > status.st_size:
        raise EngineError(
            file, f"needs {end} bytes of {shown}, which has {status.st_size}: it is incomplete, get it again"
        )


class _Scan:
    """One pass over the fields of an ONNX file; its methods raise ProtobufError or ValueError for other data."""

    def __init__(self) -> None:
        self._count = 0

    def external_data(self, message: memoryview, kind: str = "ModelProto", depth: int = 0) -> Iterator[_ExternalData]:
        """Yields the external data of all tensors in a message."""
        if depth > MAX_NESTING:
            raise ValueError(f"it nests deeper than {MAX_NESTING}")
        entries: dict[str, str] = {}
        is_external = False
        for number, value in self._fields(message):
            if isinstance(value, memoryview):
                if number in _FOLLOWED[kind]:
                    yield from self.external_data(value, _FOLLOWED[kind][number], depth + 1)
                elif (kind, number) == _EXTERNAL_DATA:
                    key, text = self._entry(value)
                    if entries.setdefault(key, text) != text:
                        raise ValueError(f"a tensor has two values of {key[:40]!a}")
            elif (kind, number) == _DATA_LOCATION:
                is_external = value == _EXTERNAL
        if is_external:
            numbers = [_bytes(entries.get(key, "0")) for key in ("offset", "length")]
            yield _ExternalData(entries.get("location", ""), *numbers)

    def _entry(self, message: memoryview) -> tuple[str, str]:
        """Returns the key and the value of a StringStringEntryProto."""
        values = {number: value for number, value in self._fields(message) if isinstance(value, memoryview)}
        key, text = (bytes(values.get(number, b"")).decode(errors="backslashreplace") for number in (1, 2))
        return key, text

    def _fields(self, message: memoryview) -> Iterator[tuple[int, memoryview | int | None]]:
        for each in fields(message):
            self._count += 1
            if self._count > MAX_FIELDS:
                raise ValueError(f"its graph has more than {MAX_FIELDS} fields")
            yield each


def _bytes(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:  # noqa: PLR2004 - digits of 2⁶³.
        raise ValueError(f"a tensor's offset or length is {text[:40]!a}: no number of bytes")
    return int(text)
