"""What a vehicle may want of a model, by the model's card: asked by the vehicle at its start, by the worker of every frame."""

from shared.encoding.msgpack_reader import MessageError
from shared.messages import results
from shared.messages.frame import RequestOptions
from shared.messages.model_card import ModelCard, Task


def check_request_options(want: RequestOptions, card: ModelCard) -> None:
    """Whether a model can answer as a vehicle wishes; asked before anything is decoded or inferred.

    Raises:
        MessageError: its results are not packed so, or it has no such outputs or classes; the message names what there is.
    """
    codecs = results.codecs(card.task)
    if want.mask_codec not in codecs:
        raise MessageError(f"no {results.noun(card.task)} codec {want.mask_codec[:40]!r}: ask for {', '.join(codecs)}")
    unknown = [name for name in want.outputs if name not in card.outputs]
    if unknown:
        there = (
            f"ask for {', '.join(card.outputs)}"
            if card.outputs
            else "a model of raw tensors alone has some to choose from"
        )
        raise MessageError(f"model {card.name} has no output {', '.join(unknown)[:200]}: {there}")
    if want.top_k is None:
        return
    if card.task is not Task.CLASSIFICATION:
        raise MessageError(f"model {card.name} tells no best classes, its task is {card.task}: leave top-k out")
    if want.top_k > len(card.labels.names):
        raise MessageError(f"model {card.name} has {len(card.labels.names)} classes, not {want.top_k}: ask for fewer")
