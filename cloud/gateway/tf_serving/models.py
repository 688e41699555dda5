"""Metadata of a model in the TensorFlow Serving protocol: its spec, signatures and versions."""

from typing import Any

from cloud.gateway.common import tensor_specs
from cloud.gateway.common.tensor_specs import PACKED, TensorSpec
from cloud.gateway.submission import Door
from cloud.gateway.tf_serving.signatures import METHOD, SIGNATURES
from cloud.gateway.tf_serving.versions import version_number
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import dtype_number
from shared.messages.model_card import ModelCard


def model_spec(card: ModelCard, signature_name: str = "") -> Any:
    """Creates the ModelSpec of a response."""
    return message_class("tensorflow.serving.ModelSpec")(
        name=card.name, version={"value": version_number(card.version)}, signature_name=signature_name
    )


def signature_defs(card: ModelCard, submission: Door) -> Any:
    """Creates the SignatureDefMap of a model that is served."""
    outputs = tensor_specs.outputs(card, submission.heads(card), submission.given(card))
    defs = message_class("tensorflow.serving.SignatureDefMap")()
    for signature in SIGNATURES.values():
        signature_def = defs.signature_def[signature.name]
        signature_def.method_name = METHOD
        input_spec = signature.input_spec(card)
        _fill_tensor_info(signature_def.inputs[input_spec.name], input_spec)
        for spec in (PACKED,) if signature.returns_results else outputs:
            _fill_tensor_info(signature_def.outputs[spec.name], spec)
    return defs


def version_numbers(submission: Door, model: str, version: str | None) -> tuple[int, ...]:
    """Returns the numbers of the versions that are served, the current one first; only that of `version` if given.

    Raises:
        ApiError: the worker does not serve the model.
    """
    submission.card(model, version)
    served = (card.version for card in submission.cards() if card.name == model)
    return tuple(version_number(each) for each in served if version in (None, each))


def _fill_tensor_info(info: Any, spec: TensorSpec) -> None:
    info.name = f"{spec.name}:0"
    if spec.dtype is not None:
        info.dtype = dtype_number(spec.dtype) or 0  # DT_INVALID: callers cannot receive this type.
    info.tensor_shape.unknown_rank = spec.shape is None
    for size in spec.shape or ():
        info.tensor_shape.dim.add(size=size)
