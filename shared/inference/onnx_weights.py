"""Finds and checks the other files in which an ONNX file keeps weights ("external data"), without the onnx package.

A model that has such files is a folder with one `.onnx` and its weights, so that the manifest's hash covers all of them.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shared.inference.engine import EngineError

# Bytes of a TensorProto: entries of external_data (field 13, key and value), then data_location (field 14), EXTERNAL.
_LENGTH = rb"([\x00-\x7f]|[\x80-\xff][\x00-\x7f])"  # One or two bytes.
_HEAD = re.compile(rb"j%b" % _LENGTH, re.DOTALL)
_PAIR = re.compile(rb"\n%b([a-z_0-9]+)\x12%b(.*)" % (_LENGTH, _LENGTH), re.DOTALL)
_START = re.compile(rb"j%b\n[\x06\x08](location|offset|length|checksum|basepath)\x12" % _LENGTH, re.DOTALL)
_EXTERNAL = b"p\x01"


def checked_onnx_file(path: Path) -> Path:
    """Returns the `.onnx` file of a model: `path` itself, or the one in the folder `path`.

    Raises:
        EngineError: the folder has no or several, or weights are missing or outside of `path`.
    """
    if not path.is_dir():
        if names := weight_files(path):
            raise EngineError(
                path,
                f"keeps weights in {', '.join(names)[:200]}, which the hash of this file does not cover: "
                f"let `skylane model inspect {path.name} --write FOLDER` copy them into one folder",
            )
        return path
    onnx_files = [each for each in sorted(path.iterdir()) if each.suffix.lower() == ".onnx"]
    if len(onnx_files) != 1:
        raise EngineError(path, f"holds {len(onnx_files)} .onnx files: give a folder with one and its weights")
    weight_files(onnx_files[0])
    return onnx_files[0]


def weight_files(file: Path) -> tuple[str, ...]:
    """Returns the paths of the other files with weights of an `.onnx` file, relative to its folder, sorted.

    Raises:
        EngineError: the file is unreadable, or its weights are missing, too short, or outside of its folder.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise EngineError(file, f"cannot be read ({error.strerror})") from error
    ends: dict[str, int] = {}
    for entries in _external_data(data):
        numbers = [entries.get(key, b"0") for key in (b"offset", b"length")]
        if not all(re.fullmatch(rb"[0-9]{1,19}", each) for each in numbers):
            raise EngineError(file, "has weights whose offset or length is no number: it is damaged, get it again")
        name = entries.get(b"location", b"").decode(errors="replace")
        ends[name] = max(ends.get(name, 0), sum(map(int, numbers)))
    for name, end in ends.items():
        if problem := _problem(file.parent, name, end):
            raise EngineError(file, f"keeps weights in {name[:120]!a}, which {problem}")
    return tuple(sorted(ends))


def _external_data(data: bytes) -> Iterator[dict[bytes, bytes]]:
    """Yields the entries of each tensor with external data; of a repeated key the last value, as ONNX Runtime does."""
    at = 0
    while start := _START.search(data, at):
        at = start.start()
        entries: dict[bytes, bytes] = {}
        while head := _HEAD.match(data, at):
            at = head.end() + head[1][0] % 128 + (head[1][1] << 7 if len(head[1]) > 1 else 0)
            if pair := _PAIR.fullmatch(data, head.end(), at):
                entries[pair[2]] = pair[4]
        if data.startswith(_EXTERNAL, at):
            yield entries


def _problem(folder: Path, name: str, end: int) -> str | None:
    """Returns why the first `end` bytes of the file `name` in `folder` cannot be read; None if they can."""
    parts = PurePosixPath(name)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or not name.isprintable():
        return "is no path inside its folder: save it with its weights beside it"
    try:
        size = (folder / parts).stat().st_size
    except FileNotFoundError:
        return "is missing: put it there, under this name"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not (folder / parts).is_file() or not (folder / parts).resolve().is_relative_to(folder.resolve()):
        return "is no file inside its folder (a link leads out): copy it there"
    return None if end <= size else f"has {size} bytes instead of {end}: it is incomplete, get it again"
