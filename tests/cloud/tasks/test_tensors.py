from typing import Any

import numpy as np
import pytest

from cloud.tasks.tensors import result
from shared.messages.frame import RequestOptions
from shared.messages.model_card import Task
from shared.messages.results import Tensors
from tests.cloud.tasks.parts import manifest, message

OUTPUTS: dict[str, Any] = {"depth": np.arange(6, dtype=np.float16).reshape(2, 3), "flow": np.arange(4, dtype=np.int64)}


@pytest.mark.parametrize(
    ("wanted", "told"), [((), ["depth", "flow"]), (("flow",), ["flow"]), (("flow", "depth"), ["flow", "depth"])]
)
def test_what_was_asked_for_is_told(wanted: tuple[str, ...], told: list[str]) -> None:
    """All, where nothing was; each as the model gave it."""
    got = result(OUTPUTS, message(RequestOptions(outputs=wanted)), manifest(Task.TENSORS))
    assert isinstance(got, Tensors)
    assert list(got.values) == told
    for name, array in got.values.items():
        assert array is OUTPUTS[name]
