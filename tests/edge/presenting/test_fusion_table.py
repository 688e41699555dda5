"""The fusion file: checked before the first frame, and only used for the models that it was made for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from edge.presenting.fusion_table import FusionError, fusion_for, read_fusion, shipped_fusion, write_fusion
from shared.models.repository import Repository
from shared.package_data import shipped
from tests.edge.presenting.test_fuse import LOCAL, REFERENCE, header, mask_table


def written(path: Path, **changes: Any) -> Path:
    """Writes a file whose header or arrays are changed."""
    table = mask_table()
    document = header().model_dump(mode="json") | changes
    arrays = {name: changes.get(name, array) for name, array in table.arrays.items()}
    document.pop("classes", None)
    np.savez(path, header=np.frombuffer(json.dumps(document).encode(), np.uint8), **arrays)
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Ages between the measured ones take the nearest one by ratio."""
    path = tmp_path / "new" / "fusion.npz"
    write_fusion(path, mask_table())
    table = fusion_for(path, REFERENCE, LOCAL)
    assert table.header == header()
    np.testing.assert_array_equal(table.arrays["classes"], mask_table().arrays["classes"])
    assert [table.age_index(age) for age in (5, 100, 140, 145, 200, 201)] == [0, 0, 0, 1, 1, None]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"features": 7}, "its features are version 7"),
    ({"ages_ms": [200, 100]}, "ages_ms must be above 0 and rise"),
    ({"ages_ms": [100, 100]}, "ages_ms must be above 0 and rise"),
    ({"ages_ms": [0, 100]}, "ages_ms must be above 0 and rise"),
    ({"ages_ms": [100]}, "instead of uint8"),
    ({"classes": np.full_like(mask_table().arrays["classes"], 5)}, "classes has values out of range"),
    ({"classes": np.array([mask_table()], object)}, "allow_pickle"),
    ({"task": "tensors"}, "task: Input should be"),
]


@pytest.mark.parametrize(("changes", "problem"), BAD, ids=[each[1][:20] for each in BAD])
def test_a_wrong_file_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    """The message has the reason; nothing in a file is executed."""
    with pytest.raises(FusionError, match=rf"is no fusion file \(.*{problem}.*tune-fusion"):
        read_fusion(written(tmp_path / "fusion.npz", **changes))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"reference: {}"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    """Such as a tuning file of the cascade."""
    path = tmp_path / "fusion.npz"
    path.write_bytes(content)
    with pytest.raises(FusionError, match=r"fusion\.npz is no fusion file"):
        read_fusion(path)


def test_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """Zeros compress well: its size on the disk tells nothing."""
    path = tmp_path / "fusion.npz"
    np.savez_compressed(path, classes=np.zeros(80 << 20, np.uint8))
    with pytest.raises(FusionError, match="the limit is 67108864"):
        read_fusion(path)


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The start of a .npy file that announces bytes of a shape."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("member", "problem"),
    [(b"hello", "EOF"), (npy_header((2**45,)), "announces more data than it has"), (b"", "EOF")],
    ids=["no array", "32 TiB", "empty"],
)
def test_a_file_with_a_hostile_array_is_refused(tmp_path: Path, member: bytes, problem: str) -> None:
    """The libraries under the reader raise errors of many types; none may end the run with a traceback."""
    path = written(tmp_path / "fusion.npz")
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(path, "w") as archive:
        for name, content in (members | {"classes.npy": member}).items():
            archive.writestr(name, content)
    with pytest.raises(FusionError, match=rf"no fusion file \(.*{problem}"):
        read_fusion(path)


def test_damaged_compressed_data_is_refused(tmp_path: Path) -> None:
    """zlib has an error type of its own."""
    path = tmp_path / "fusion.npz"
    write_fusion(path, mask_table())
    data = bytearray(path.read_bytes())
    start = data.find(b"classes.npy") + 11
    for place in range(start + 20, start + 60):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(FusionError, match="no fusion file"):
        read_fusion(path)


def test_a_file_of_other_models_is_refused(tmp_path: Path) -> None:
    """Reliability was measured with the very files of both models."""
    path = written(tmp_path / "fusion.npz")
    for reference, local, problem in (
        (replace(REFERENCE, name="large"), LOCAL, "for the reference model tiny, not for large"),
        (REFERENCE, replace(LOCAL, sha256="2" * 64), "for the local model another file of local"),
    ):
        with pytest.raises(FusionError, match=rf"{problem}.*--local-model local.*with --fusion"):
            fusion_for(path, reference, local)
    with pytest.raises(FusionError, match="no fusion file ships for model tiny and local model local"):
        fusion_for(None, REFERENCE, LOCAL)


def test_the_shipped_file_fits_the_shipped_models() -> None:
    """A model that is trained again needs a new file."""
    repository = Repository(shipped("models"))
    reference, local = (repository.find(name).card() for name in ("road-small", "road-tiny"))
    assert shipped_fusion(reference.name, local.name) is not None
    table = fusion_for(None, reference, local)
    assert all(each.fuse >= max(each.local, each.warp) for each in table.header.judged)
