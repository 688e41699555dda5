"""TorchScript files, which declare no shapes: `inspect` runs them once on a black image."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.models.loader import ModelLoader
from modelling.inspection.inspection import inspect, write
from shared.errors import MissingExtraError
from shared.inference.engine import EngineError
from shared.models.manifest import OutputKind
from shared.models.repository import Repository

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch:DeprecationWarning")

SIZE = (32, 48)


class _Planar(torch.nn.Module):  # type: ignore[misc]  # PyTorch is optional.
    """Scores N×19×H×W."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 19, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class _ByKey(_Planar):
    """The result of torchvision's segmentation networks."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.conv(x), "aux": self.conv(x)}


class _Ids(_Planar):
    """Class ids N×H×W."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).argmax(1)


class _LossFirst(_Planar):
    """A tuple of a scalar and the scores."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean(), self.conv(x)


class _AsList(_Planar):
    """A list, and an option with a default."""

    def forward(self, x: torch.Tensor, train: bool = False) -> list[torch.Tensor]:  # noqa: FBT001, FBT002
        return [self.conv(x)] if not train else [x]


class _ChannelsLast(_Planar):
    """Input and output with the channels last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _Nested(_Planar):
    """The result of torchvision's detectors."""

    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        return [{"boxes": x}]


class _TwoInputs(_Planar):
    """An image and something else."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.conv(x) + y


class _Failing(_Planar):
    """A module that fails for every image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)[:, 20]


class _Scalar(_Planar):
    """One number for all images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


class _Number(_Planar):
    """No tensor at all."""

    def forward(self, x: torch.Tensor) -> int:
        return int(x.dim())


def _file(path: Path, network: type[_Planar]) -> Path:
    torch.jit.script(network()).save(path)
    return path


@pytest.mark.parametrize(
    ("network", "name", "kind"),
    [
        (_Planar, "0", OutputKind.SCORES),
        (_ByKey, "out", OutputKind.SCORES),
        (_Ids, "0", OutputKind.CLASS_IDS),
        (_LossFirst, "1", OutputKind.SCORES),
        (_AsList, "0", OutputKind.SCORES),
        (_ChannelsLast, "0", OutputKind.SCORES),
    ],
)
def test_the_output_is_found_by_a_run(tmp_path: Path, network: type[_Planar], name: str, kind: OutputKind) -> None:
    """Its name is the key or the place, as the engine expects it, and the written model runs."""
    found = inspect(_file(tmp_path / "net.pt", network), size=SIZE)
    section = found.manifest.input
    assert (found.manifest.format, section.tensor, section.height, section.width) == ("torchscript", "x", *SIZE)
    assert (found.manifest.heads["mask"].tensor, found.manifest.heads["mask"].kind) == (name, kind)
    if kind is OutputKind.SCORES:
        assert found.interface.classes == 19
    write(found, tmp_path / "models" / "net")
    with ModelLoader(Repository(tmp_path / "models")).open("net") as model:
        assert model.predict(np.zeros((2, *SIZE, 3), np.uint8)).shape == (2, *SIZE)


def test_a_size_is_needed_and_bounded(tmp_path: Path) -> None:
    """One sentence asks for it."""
    path = _file(tmp_path / "net.pt", _Planar)
    with pytest.raises(EngineError, match="declares no input size: give it, as --size 512x1024"):
        inspect(path)
    with pytest.raises(EngineError, match="at most 16384 a side"):
        inspect(path, size=(99_999, 99_999))


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (_Nested, "its output 0 is a dict, not a tensor: wrap it"),
        (_TwoInputs, "takes y besides an image: script a module whose forward"),
        (_Failing, "fails on a black image of 32×48: .*out of (bounds|range)"),
        (_Scalar, "0 float32 scalar"),
        (_Number, "its output 0 is a int, not a tensor"),
    ],
)
def test_other_results_are_refused(tmp_path: Path, network: type[_Planar], problem: str) -> None:
    """The message says what the module needs or returns."""
    with pytest.raises(EngineError, match=problem):
        inspect(_file(tmp_path / "net.pt", network), size=SIZE)


def test_other_files_of_pytorch_are_refused_without_loading_them(tmp_path: Path) -> None:
    """State dicts and whole modules are pickles; a torch.export program is another format."""
    module = torch.nn.Conv2d(3, 5, 1)
    torch.save(module.state_dict(), tmp_path / "state.pth")
    torch.save(module, tmp_path / "whole.pt")
    torch.save(module.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": module.state_dict()}, tmp_path / "lightning.ckpt")
    for path in tmp_path.iterdir():
        with pytest.raises(EngineError, match=r"is a Python pickle, such as torch.save writes"):
            inspect(path, size=SIZE)
    program = tmp_path / "program.pt2"
    import_module("torch.export").save(torch.export.export(module, (torch.zeros(1, 3, 8, 8),)), program)
    with pytest.raises(EngineError, match=r"is a model of another tool"):
        inspect(program, size=SIZE)


def test_without_pytorch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not part of an ordinary installation."""
    path = _file(tmp_path / "net.pt", _Planar)
    monkeypatch.delitem(sys.modules, "cloud.engines.torchscript", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"needs torch, which is not installed: .*skylane\[torch\]"):
        inspect(path, size=SIZE)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Empty, no archive, and cut off."""
    whole = _file(tmp_path / "net.pt", _Planar).read_bytes()
    for content in (b"", b"PK\x03\x04" + b"junk" * 99, whole[: len(whole) // 2]):
        (tmp_path / "bad.pt").write_bytes(content)
        with pytest.raises(EngineError, match=r"PyTorch cannot load this TorchScript|is empty"):
            inspect(tmp_path / "bad.pt", size=SIZE)
