import hashlib
from pathlib import Path

from shared.files import file_sha256, tree_sha256


def test_the_hash_of_a_file_is_the_sha256_of_its_bytes(tmp_path: Path) -> None:
    """It agrees with sha256sum."""
    path = tmp_path / "model.pb"
    path.write_bytes(b"weights")
    assert tree_sha256(path) == file_sha256(path) == hashlib.sha256(b"weights").hexdigest()


def _folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_hash_of_a_folder_depends_only_on_names_and_contents(tmp_path: Path) -> None:
    """A copy of a SavedModel is the same model."""
    files = {"a/x": "1", "a/y": "2", "b": "3"}
    first = _folder(tmp_path / "first", files)
    second = _folder(tmp_path / "second", dict(reversed(files.items())))
    (second / "empty").mkdir()
    assert tree_sha256(first) == tree_sha256(second)


def test_every_change_in_a_folder_changes_its_hash(tmp_path: Path) -> None:
    """Files may be moved, renamed, swapped, added or merged."""
    trees = [
        {"a/x": "1", "b": "2"},
        {"a/x": "2", "b": "1"},
        {"a/z": "1", "b": "2"},
        {"x": "1", "b": "2"},
        {"a/x": "1", "b": "2", "c": ""},
        {"a/x": "12"},
    ]
    hashes = {tree_sha256(_folder(tmp_path / str(index), files)) for index, files in enumerate(trees)}
    assert len(hashes) == len(trees)
