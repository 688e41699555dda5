"""Opens a model of the repository on any engine of a worker."""

from pathlib import Path

from cloud.isolation.engine import IsolatedEngine, IsolationLimits
from shared import registry
from shared.inference.engine import Engine
from shared.inference.model import Model, open_stored
from shared.inference.table import ENGINES
from shared.models.manifest import Manifest, Placement
from shared.models.repository import StoredModel


def open_model(
    stored: StoredModel,
    engine: str | None = None,
    placement: Placement = Placement(),  # noqa: B008 - frozen.
    max_batch: int | None = None,
    isolation: IsolationLimits | None = None,
) -> Model:
    """Checks the file of a model and opens it on a device, without warm-up.

    Args:
        stored: The model.
        engine: The engine; None for the default of the format.
        placement: The device and its settings.
        max_batch: The largest batch, instead of the manifest's.
        isolation: Limits of the separate process in which the engine runs; None for this process. A remote engine
            always runs in this process.

    Raises:
        MissingExtraError: the library of the engine is not installed.
        SkylaneError: see `shared.inference.model.open_stored`.
    """

    def open_engine(name: str, path: Path, manifest: Manifest) -> Engine:
        if isolation is not None and manifest.remote is None:
            return IsolatedEngine(path, manifest, placement, engine=name, limits=isolation)
        opened: Engine = registry.load("engine", ENGINES, name)(path, manifest, placement)
        return opened

    return open_stored(stored, ENGINES, open_engine, engine=engine, max_batch=max_batch)
