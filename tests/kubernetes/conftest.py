"""A model repository for workers, with one model that is slow."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import onnx_models

_SIDE, _PRODUCTS = 1024, 6  # A frame costs 13 billion operations: a tenth or two of a second of one core.


@pytest.fixture
def slow_repository(tmp_path: Path) -> Path:
    """A repository with a model whose inference multiplies large matrices, which contribute nothing to its scores."""
    onnx: Any = import_module("onnx")
    helper, content = onnx.helper, onnx_models.model()
    graph = content.graph
    (scores,) = [node for node in graph.node if node.op_type == "Conv"]
    scores.output[0] = "plain"
    sizes = onnx.numpy_helper.from_array(np.array([_SIDE, _SIDE], "int64"), "sizes")
    zero = onnx.numpy_helper.from_array(np.array(0.0, "float32"), "zero")
    graph.initializer.extend([sizes, zero])
    nodes = [
        helper.make_node("ReduceMean", ["picture"], ["mean"], keepdims=0),  # Otherwise the products were constants.
        helper.make_node("Expand", ["mean", "sizes"], ["product-0"]),
        *(
            helper.make_node("MatMul", [f"product-{number}", "product-0"], [f"large-{number}"])
            if part == 0
            else helper.make_node("Tanh", [f"large-{number}"], [f"product-{number + 1}"])
            for number in range(_PRODUCTS)
            for part in range(2)
        ),
        helper.make_node("ReduceMean", [f"product-{_PRODUCTS}"], ["last"], keepdims=0),
        helper.make_node("Mul", ["last", "zero"], ["nothing"]),
        helper.make_node("Add", ["plain", "nothing"], ["scores"]),
    ]
    graph.node.extend(nodes)
    root = tmp_path / "models"
    root.mkdir()
    onnx_models.add(root, content)
    return root
