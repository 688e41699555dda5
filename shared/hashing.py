"""SHA-256 of what a result depends on: a file, or a folder of files."""

import hashlib
from pathlib import Path

_BLOCK_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, hexadecimal. Raises OSError where it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def tree_sha256(path: Path) -> str:
    """The SHA-256 of a file, or of a folder: over its files' relative paths and contents, sorted by path.

    Names, contents and the tree's shape count; times, modes and empty folders do not. Raises OSError where something
    cannot be read.
    """
    if not path.is_dir():
        return file_sha256(path)
    digest = hashlib.sha256()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    for name in sorted(files):
        # The content enters as a digest of fixed length, so that no name can pass for content.
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(file_sha256(files[name])))
    return digest.hexdigest()
