"""Opens the models of a tuning: the reference model as a worker does, the local model as a vehicle does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cloud.models.loader import ModelLoader
from shared.inference.model import Model, open_local
from shared.models.manifest import Placement
from shared.models.repository import Repository


@contextmanager
def opened_models(
    repository: Repository, reference: str, local: str | None, device: str
) -> Iterator[tuple[Model, Model | None]]:
    """Opens both models, the local one with its output for the confidence.

    Raises:
        SkylaneError: a model does not exist or cannot be opened.
    """
    with ExitStack() as stack:
        found = None
        if local is not None:
            stored = repository.find(local)
            stored = replace(stored, manifest=stored.manifest.with_confidence_head())
            found = stack.enter_context(open_local(stored, Placement()))
        model = stack.enter_context(ModelLoader(repository, Placement(device=device)).open(reference))
        yield model, found
