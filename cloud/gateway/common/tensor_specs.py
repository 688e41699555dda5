"""Input and output tensors of a model, independent of the protocol."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cloud.gateway.common.inference import IMAGES, INPUT, RESULTS
from cloud.models.model import OutputType
from shared.messages.model_card import ModelCard
from shared.tasks.task import task_named

ANY = -1  # A dimension of variable size.


class TensorSpec(NamedTuple):
    """Name, type and shape of a tensor."""

    name: str
    dtype: str | None  # NumPy's name, or "bytes" for strings; None: unknown until the model has run.
    shape: tuple[int, ...] | None  # None: unknown, as above.


PACKED = TensorSpec(RESULTS, "bytes", (ANY,))
ENCODED = TensorSpec(IMAGES, "bytes", (ANY,))


def pixels(card: ModelCard) -> TensorSpec:
    """Returns the spec of the input that holds pixels."""
    return TensorSpec(INPUT, "uint8", (ANY, card.height, card.width, 3))


def outputs(
    card: ModelCard, heads: Sequence[str], warmup_types: Mapping[str, OutputType] | None = None
) -> tuple[TensorSpec, ...]:
    """Returns the specs of a model's outputs; `warmup_types` are the types that its warm-up produced."""
    sizes = {"height": card.height, "width": card.width, "labels": len(card.labels.names)}
    known = {
        name: TensorSpec(
            name, head.dtype, (ANY, *(sizes[side] if isinstance(side, str) else side for side in head.shape))
        )
        for name, head in task_named(card.task).heads.items()
    } or {name: TensorSpec(name, each.dtype, (ANY, *each.shape)) for name, each in (warmup_types or {}).items()}
    return tuple(known.get(head, TensorSpec(head, None, None)) for head in heads)
