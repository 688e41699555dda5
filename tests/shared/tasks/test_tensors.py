from typing import Any

import numpy as np
import pytest

from shared.messages.frame import RequestOptions
from shared.messages.results import Tensors
from shared.tasks.tensors import TensorsTask
from tests.shared.tasks.parts import manifest, message

OUTPUTS: dict[str, Any] = {"depth": np.arange(6, dtype=np.float16).reshape(2, 3), "flow": np.arange(4, dtype=np.int64)}


@pytest.mark.parametrize(
    ("wanted", "expected"), [((), ["depth", "flow"]), (("flow",), ["flow"]), (("flow", "depth"), ["flow", "depth"])]
)
def test_the_requested_tensors_are_returned(wanted: tuple[str, ...], expected: list[str]) -> None:
    """Without a request, all of them are returned unchanged."""
    got = TensorsTask().result(OUTPUTS, message(RequestOptions(outputs=wanted)), manifest("tensors"))
    assert isinstance(got, Tensors)
    assert list(got.values) == expected
    for name, array in got.values.items():
        assert array is OUTPUTS[name]
