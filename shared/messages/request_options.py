"""Validation of a vehicle's request options against the card of a model."""

from shared.messages.frame import RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.task import task_named


def check_request_options(options: RequestOptions, card: ModelCard) -> None:
    """Checks that a model supports the options; a vehicle does so at its start, a worker for every frame.

    Raises:
        MessageError: The model has no such codec, outputs or number of classes; the message lists the valid choices.
    """
    task = task_named(card.task)
    if options.mask_codec not in task.codecs:
        codecs = ", ".join(task.codecs)
        raise MessageError(f"no {task.result_name} codec {options.mask_codec[:40]!r}: ask for {codecs}")
    unknown = [name for name in options.outputs if name not in card.outputs]
    if unknown:
        hint = f"ask for {', '.join(card.outputs)}" if card.outputs else "only models of raw tensors have named outputs"
        raise MessageError(f"model {card.name} has no output {', '.join(unknown)[:200]}: {hint}")
    if options.top_k is None:
        return
    if "top_k" not in task.settings:
        raise MessageError(f"model {card.name} returns no ranked classes, its task is {card.task}: leave top-k out")
    if options.top_k > len(card.labels.names):
        raise MessageError(
            f"model {card.name} has {len(card.labels.names)} classes, not {options.top_k}: ask for fewer"
        )
