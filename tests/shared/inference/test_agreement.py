from typing import Any

import numpy as np
import pytest

from shared.inference.model import AgreementError, agreement, largest_difference, warmup_images
from shared.models.manifest import Manifest


def _manifest(task: str, outputs: dict[str, Any] | None = None, kind: str = "class_ids") -> Manifest:
    document: dict[str, Any] = {
        "task": task,
        "format": "frozen_graph",
        "file": "m.pb",
        "sha256": "0" * 64,
        "input": {"tensor": "i", "height": 100, "width": 100},
        "labels": [{"name": "a", "colour": [0, 0, 0]}, {"name": "b", "colour": [1, 1, 1]}],
    }
    document |= {"outputs": outputs} if outputs else {"output": {"tensor": "o", "kind": kind}}
    return Manifest.model_validate(document)


_DETECTION = {"boxes": {"tensor": "b", "kind": "boxes"}, "scores": {"tensor": "s", "kind": "probabilities"}}
_TENSORS = {"depth": {"tensor": "d", "kind": "tensor"}, "pose": {"tensor": "p", "kind": "tensor"}}


def test_masks_agree_by_pixels() -> None:
    """Three of four labels are the same."""
    reference, given = np.array([[[0, 1], [1, 1]]], np.uint8), np.array([[[0, 1], [1, 0]]], np.uint8)
    assert agreement(_manifest("segmentation"), {"mask": reference}, {"mask": given}) == 0.75


def test_classifications_agree_by_their_best_class() -> None:
    """Small changes of the scores do not matter."""
    reference = np.array([[0.9, 0.1], [0.2, 0.8]], np.float32)
    given = np.array([[0.8, 0.2], [0.6, 0.4]], np.float32)
    manifest = _manifest("classification", kind="probabilities")
    assert agreement(manifest, {"scores": reference}, {"scores": given}) == 0.5
    assert largest_difference({"scores": reference}, {"scores": given}) == pytest.approx(0.4)


def test_detections_agree_by_matched_objects() -> None:
    """Two of three objects match."""
    boxes = np.array([[[0, 0, 20, 20], [50, 50, 90, 90]]], np.float32)
    both = np.array([[[0.9, 0.0], [0.0, 0.8]]], np.float32)
    one = np.array([[[0.9, 0.0], [0.0, 0.1]]], np.float32)
    manifest = _manifest("detection", _DETECTION)
    share = agreement(manifest, {"boxes": boxes, "scores": both}, {"boxes": boxes + 1, "scores": one})
    assert share == pytest.approx(2 / 3)
    none = np.zeros_like(both)
    assert agreement(manifest, {"boxes": boxes, "scores": none}, {"boxes": boxes, "scores": none}) == 1.0
    other = both[..., ::-1].copy()  # The same boxes, of other classes.
    assert agreement(manifest, {"boxes": boxes, "scores": both}, {"boxes": boxes, "scores": other}) == 0.0


def test_tensors_agree_as_the_worst_one() -> None:
    """A wrong output must not be hidden by a correct one."""
    good, bad = np.ones((1, 4), np.float32), np.array([[1.0, 1.0, 1.0, 2.0]], np.float32)
    share = agreement(_manifest("tensors", _TENSORS), {"depth": good, "pose": good}, {"depth": good, "pose": bad})
    assert share == 0.75


def test_warmup_images_have_any_size_and_are_different() -> None:
    """Equal images would not show that a model mixes the images of a batch."""
    shown = warmup_images(38, 60, 9)
    assert shown.shape == (9, 38, 60, 3)
    assert shown.dtype == np.uint8
    assert len({picture.tobytes() for picture in shown}) == 9
    assert shown.std() > 20


def test_infinities_at_the_same_place_are_equal() -> None:
    """A distance without an obstacle is infinite, on every engine."""
    far = np.array([[np.inf, 1.0]], np.float32)
    near = np.array([[5.0, 1.0]], np.float32)
    manifest = _manifest("tensors", _TENSORS)
    assert agreement(manifest, {"depth": far, "pose": far}, {"depth": far, "pose": far}) == 1.0
    assert agreement(manifest, {"depth": far, "pose": far}, {"depth": far, "pose": near}) == 0.5
    assert largest_difference({"depth": far}, {"depth": far}) == 0.0


def test_outputs_of_another_model_are_an_error() -> None:
    """They cannot be compared."""
    reference = {"depth": np.ones((1, 4), np.float32)}
    with pytest.raises(
        AgreementError, match="its outputs are depth 1×3, those of the reference depth 1×4: the models are different"
    ):
        largest_difference(reference, {"depth": np.ones((1, 3), np.float32)})
    with pytest.raises(AgreementError, match="its outputs are pose 1×4, those of the reference depth 1×4"):
        largest_difference(reference, {"pose": reference["depth"]})
