"""JSON objects with large lists of pixels in them, which are told from what only looks like such a list."""

import json
import re
from typing import Any

import numpy as np
import pytest

from cloud.gateway.json_arrays import read_with_arrays
from cloud.gateway.refusal import RefusedError

_OPENING = re.compile(rb"\[\s*\[\s*\[")


def listed(seed: int) -> Any:
    """A picture's rows of pixels, as lists, long enough to be read as an array."""
    return np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8).tolist()


def read(given: dict[str, Any]) -> dict[str, Any]:
    """What is read of an object once it is written."""
    return read_with_arrays(json.dumps(given).encode(), _OPENING)


def test_large_lists_become_arrays() -> None:
    """Each in its place, among values that are none."""
    told = read({"first": listed(1), "name": "net", "second": listed(2)})
    assert told["name"] == "net"
    for key, seed in (("first", 1), ("second", 2)):
        assert told[key].dtype == np.uint8
        np.testing.assert_array_equal(told[key], listed(seed))


@pytest.mark.parametrize("behind", [{}, {"pixels": listed(2)}], ids=["alone", "before a list"])
def test_a_text_that_looks_like_a_list_stays_a_text(behind: dict[str, Any]) -> None:
    """Its array would be left over, or be taken for the next list: one caller's words as another tensor's pixels."""
    given = {"text": json.dumps(listed(1)), **behind}
    assert read(given) == given


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("text", ["", json.dumps(listed(2))], ids=["", "with a text that looks like a list"])
def test_what_json_has_not_is_refused_beside_lists_too(odd: str, text: str) -> None:
    """Python reads it: it must take no list's place, and end no worker where there is no list for it."""
    body = f'{{"text": {json.dumps(text)}, "pixels": {listed(1)}, "odd": {odd}}}'
    with pytest.raises(RefusedError, match=f"{odd} is no number of JSON"):
        read_with_arrays(body.encode(), _OPENING)
