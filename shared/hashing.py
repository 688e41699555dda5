"""SHA-256 hashes of files and folders."""

import hashlib
from pathlib import Path

from shared.files import open_file

_BLOCK_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def tree_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, or of the relative paths and contents of all files in a folder, sorted by path.

    Times, modes and empty folders do not change the hash.
    """
    if not path.is_dir():
        return file_sha256(path)
    digest = hashlib.sha256()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.exists() and not file.is_dir()}
    for name in sorted(files):
        # The content is hashed as a digest of fixed length, so that names and contents cannot be confused.
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(file_sha256(files[name])))
    return digest.hexdigest()
