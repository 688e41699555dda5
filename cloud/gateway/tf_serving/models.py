"""What TensorFlow Serving's doors tell of a model: its spec, its signatures and the versions that are served."""

from typing import Any

from cloud.gateway.common import tensor_specs
from cloud.gateway.common.tensor_specs import PACKED, TensorSpec
from cloud.gateway.submission import Door
from cloud.gateway.tf_serving.signatures import METHOD, SIGNATURES
from cloud.gateway.tf_serving.versions import number_of
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import dtype_number
from shared.messages.model_card import ModelCard


def model_spec(card: ModelCard, signature_name: str = "") -> Any:
    """The ModelSpec of what answered."""
    return message_class("tensorflow.serving.ModelSpec")(
        name=card.name, version={"value": number_of(card.version)}, signature_name=signature_name
    )


def signature_defs(card: ModelCard, door: Door) -> Any:
    """The SignatureDefMap of a model that is served at the door."""
    outputs = tensor_specs.outputs(card, door.heads(card), door.given(card))
    defs = message_class("tensorflow.serving.SignatureDefMap")()
    for each in SIGNATURES.values():
        told = defs.signature_def[each.name]
        told.method_name = METHOD
        for spec in each.inputs(card):
            _tell(told.inputs[spec.name], spec)
        for spec in (PACKED,) if each.gives_results else outputs:
            _tell(told.outputs[spec.name], spec)
    return defs


def version_statuses(door: Door, model: str, version: str | None) -> tuple[int, ...]:
    """The numbers of the versions that are served, the current one first; of one alone where it is named.

    Raises:
        RefusedError: the model is not served.
    """
    door.card(model, version)
    served = (card.version for card in door.cards() if card.name == model)
    return tuple(number_of(each) for each in served if version in (None, each))


def _tell(info: Any, spec: TensorSpec) -> None:
    info.name = f"{spec.name}:0"
    if spec.dtype is not None:
        info.dtype = dtype_number(spec.dtype) or 0  # DT_INVALID: it cannot be asked for here.
    info.tensor_shape.unknown_rank = spec.shape is None
    for side in spec.shape or ():
        info.tensor_shape.dim.add(size=side)
