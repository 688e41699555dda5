"""What tensors a model takes and gives at the doors, in the words of no protocol."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cloud.gateway.common.inference import IMAGES, INPUT, RESULTS
from cloud.models.model import OutputType
from shared.messages.model_card import ModelCard, Task

ANY = -1  # Of a side: as many as there are.


class TensorSpec(NamedTuple):
    """A tensor by its name."""

    name: str
    dtype: str | None  # As NumPy calls it, "bytes" for strings; None: it is not known before the model has answered.
    shape: tuple[int, ...] | None  # None: the same.


PACKED = TensorSpec(RESULTS, "bytes", (ANY,))
ENCODED = TensorSpec(IMAGES, "bytes", (ANY,))


def pixels(card: ModelCard) -> TensorSpec:
    """The input as numbers."""
    return TensorSpec(INPUT, "uint8", (ANY, card.height, card.width, 3))


def outputs(
    card: ModelCard, heads: Sequence[str], given: Mapping[str, OutputType] | None = None
) -> tuple[TensorSpec, ...]:
    """The model's outputs as its direct call gives them; `given`: what its warm-up found them to be."""
    match card.task:
        case Task.SEGMENTATION:
            known = {"mask": TensorSpec("mask", "uint8", (ANY, card.height, card.width))}
        case Task.CLASSIFICATION:
            known = {"scores": TensorSpec("scores", "float32", (ANY, len(card.labels.names)))}
        case Task.DETECTION:
            known = {
                "boxes": TensorSpec("boxes", "float32", (ANY, ANY, 4)),
                "scores": TensorSpec("scores", "float32", (ANY, ANY, len(card.labels.names))),
            }
        case _:
            types = (given or {}).items()
            known = {head: TensorSpec(head, each.dtype, (ANY, *each.shape)) for head, each in types}
    return tuple(known.get(head, TensorSpec(head, None, None)) for head in heads)
