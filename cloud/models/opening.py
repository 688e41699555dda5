"""Opens a model of the repository on an engine."""

from pathlib import Path

from cloud.engines.engine import Engine
from cloud.engines.placement import Placement
from cloud.engines.table import ENGINES, engine_for
from cloud.isolation.engine import IsolatedEngine, IsolationLimits
from cloud.models.manifest import BatchingSection, Manifest
from cloud.models.model import Model
from cloud.models.repository import StoredModel
from shared import registry
from shared.errors import SkylaneError


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
        EngineError: the file cannot be run as the manifest describes.
        DeviceError: the device does not exist.
        SkylaneError: the engine does not read the format, or see `StoredModel.card` and `StoredModel.file`.
    """
    card, path = stored.card(), stored.file()
    manifest = stored.manifest.with_labels(card.labels)  # The warm-up checks the classes against the labels.
    if max_batch is not None:
        manifest = manifest.model_copy(update={"batching": BatchingSection(max_size=max_batch)})
    opened = _open_engine(path, manifest, placement, engine_for(manifest.format, engine), isolation)
    try:
        stored.check_hash(path)  # The file may have been replaced while it was being opened.
    except SkylaneError:
        opened.close()
        raise
    return Model(manifest, card, opened)


def _open_engine(
    path: Path, manifest: Manifest, placement: Placement, engine: str, isolation: IsolationLimits | None
) -> Engine:
    if isolation is not None and manifest.remote is None:
        return IsolatedEngine(path, manifest, placement, engine=engine, limits=isolation)
    opened: Engine = registry.load("engine", ENGINES, engine)(path, manifest, placement)
    return opened
