"""What a run says at its end, beside its tables: what was sent again, and who answered."""

from collections.abc import Iterator, Mapping

from edge.ledger import Tally
from shared.model_card import ModelCard

_SHOWN_DIGITS = 12  # Of a hash.


def retries_told(tally: Tally) -> Iterator[str]:
    """What became of the frames that were sent twice; nothing where none was."""
    if tally.retried:
        duplicates = tally.ignored_answers.get("duplicate", 0)
        yield (
            f"{tally.retried} frames met silence and were sent again: the second attempt answered {tally.retry_won}; "
            f"{duplicates} answers came twice and were not taken"
        )


def unused_told(unused: Mapping[str, str]) -> Iterator[str]:
    """A warning for each worker's address that was given in vain; `unused`: why, by address."""
    for address, why in unused.items():
        yield f"WARNING: {address} got no frame: {why}"


def answerers_told(tally: Tally, card: ModelCard) -> Iterator[str]:
    """Who answered how many frames with what, and a warning where that is not one model.

    `card`: what was asked for. Workers of one group share the frames, whatever each of them serves by that name.
    """
    for by, frames in sorted(tally.answerers.items()):
        what = f"{card.name} {by.model_version}, {by.engine or 'engine not told'}, {by.sha256[:_SHOWN_DIGITS]}"
        yield f"{frames} frames answered by {by.worker} ({what})"
    models = {(by.model_version, by.sha256) for by in tally.answerers}
    if len(models) > 1:
        yield (
            f"WARNING: {len(models)} different models answered by the name of {card.name}: the results and the times of this "
            "run are of all of them; give --model-version to stay with one"
        )
    elif models and models != {(card.version, card.sha256)}:
        yield (
            f"WARNING: {card.name} was announced as version {card.version} ({card.sha256[:_SHOWN_DIGITS]}) and another "
            "one answered"
        )
