"""Writing TorchScript from ONNX: the graph as a PyTorch module, one operation at a time, traced.

There are converters, but none that keeps up with PyTorch; networks of a camera's pictures need some fifty operations.
"""

import warnings
from pathlib import Path
from typing import Any

from modelling.conversion.errors import ConversionError
from modelling.conversion.onnx_graph import OnnxGraph
from modelling.conversion.torch_operations import Call, UnknownOperationError, run, torch

_ROUNDING = 1e-6


class OnnxModule(torch.nn.Module):  # type: ignore[misc]  # PyTorch is Any here.
    """Computes an ONNX graph of one input: a tensor in, its outputs as a tuple out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._onnx = OnnxGraph(model)
        _name_hard_swish(self._onnx)
        self._names = {}
        for place, each in enumerate(model.graph.initializer):
            self.register_buffer(f"constant_{place}", torch.from_numpy(self._onnx.constant(each.name).copy()))
            self._names[each.name] = f"constant_{place}"

    def forward(self, images: Any) -> tuple[Any, ...]:
        """Compute."""
        model = self._onnx.model
        values = {model.graph.input[0].name: images, "": None}
        values |= {name: getattr(self, buffer) for name, buffer in self._names.items()}
        for node in self._onnx.nodes():
            constants = [self._onnx.constant(name) for name in node.input]
            call = Call(
                node.op_type,
                [values[name] for name in node.input],
                [None if each is None else each.tolist() for each in constants],
                self._onnx.attributes(node),
                len(node.output),
            )
            found = run(call)
            found = found if isinstance(found, tuple) else (found,)
            values |= dict(zip(node.output, found, strict=False))
        return tuple(values[each.name] for each in model.graph.output)


def _name_hard_swish(graph: OnnxGraph) -> None:
    """`x * HardSigmoid(x)` by its name, for which PyTorch has one kernel."""
    for gate in graph.nodes("HardSigmoid"):
        product = graph.only_user(gate.output[0])
        slope, offset = graph.attribute(gate, "alpha", 0.2), graph.attribute(gate, "beta", 0.5)
        is_swish = product is not None and product.op_type == "Mul" and gate.input[0] in product.input
        if is_swish and abs(slope - 1 / 6) < _ROUNDING and offset == 0.5:  # noqa: PLR2004 - of the definition.
            graph.replace([gate, product], "HardSwish", [gate.input[0]], product.output[0])


def write_torchscript(model: Any, path: Path) -> None:
    """Write an onnx.ModelProto of one input; `forward` takes `images`, and its outputs are "0", "1" and on.

    Raises:
        ConversionError: an operation is not in the table of `modelling.conversion.torch_operations`.
    """
    (picture,) = model.graph.input
    sides = [side.dim_value or 1 for side in picture.type.tensor_type.shape.dim]
    dtype = torch.float32 if picture.type.tensor_type.elem_type == 1 else torch.uint8
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and shapes are meant to become constants.
            traced = torch.jit.trace(OnnxModule(model).eval(), torch.zeros(sides, dtype=dtype), check_trace=False)
            torch.jit.save(traced, str(path))
    except UnknownOperationError as error:
        raise ConversionError("torchscript", f"no form of {error} is known") from error
    except (RuntimeError, ValueError, KeyError) as error:
        raise ConversionError("torchscript", error) from error
