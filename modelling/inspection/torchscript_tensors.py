"""Finds the input and output of a TorchScript, which declares no shapes, by one run on a black image."""

from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.table import ENGINES
from modelling.inspection.graph_analysis import Tensor
from shared import registry
from shared.inference.errors import EngineError
from shared.models.manifest import MAX_SIDE


def torchscript_tensors(path: Path, size: tuple[int, int] | None) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the image input and the outputs of a TorchScript for an image of `size`, height and width.

    The image is N×3×H×W, or N×H×W×3 if the module fails on the former.

    Raises:
        EngineError: there is no size, or the module cannot be loaded, needs other inputs, or returns other than tensors.
        MissingExtraError: PyTorch is not installed.
    """
    registry.load("engine", ENGINES, "torchscript")
    engine = import_module("cloud.engines.torchscript")
    if size is None:
        raise EngineError(path, "is TorchScript, which declares no input size: give it, as --size 512x1024")
    if max(size) > MAX_SIDE:
        raise EngineError(path, f"cannot be run on {size[0]}×{size[1]} pixels: at most {MAX_SIDE} a side, see --size")
    torch = engine.torch
    module = engine.load_module(path, torch.device("cpu"))
    arguments = module.forward.schema.arguments[1:]
    required = [each.name for each in arguments[1:] if not each.has_default_value()]
    if not arguments or required:
        needs = f"takes {', '.join(required)} besides an image" if required else "takes no input"
        raise EngineError(path, f"{needs}: script a module whose forward takes an image alone")
    floats = [each.dtype for each in module.parameters() if each.is_floating_point()]
    dtype = torch.float16 if floats[:1] == [torch.float16] else torch.float32
    problems = []
    for shape in ((1, 3, *size), (1, *size, 3)):
        try:
            with torch.inference_mode():
                outputs = engine.outputs_by_name(module(torch.zeros(shape, dtype=dtype)))
        except (RuntimeError, ValueError) as error:
            problems.append(f"fails on a black image of {size[0]}×{size[1]}: {engine.last_line(error)}")
            continue
        image = _tensor(arguments[0].name, dtype, shape)
        return [image], [_tensor(name, each.dtype, tuple(each.shape)) for name, each in outputs.items()]
    raise EngineError(path, problems[0])


def _tensor(name: str, dtype: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor for any number of images."""
    return Tensor(name, name, str(dtype).removeprefix("torch."), (None, *shape[1:]) if shape else ())
