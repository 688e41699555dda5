"""Opens a model of the repository on an engine."""

from collections.abc import Callable, Mapping
from pathlib import Path

from shared.config import ConfigError
from shared.errors import SkylaneError
from shared.inference.engine import Engine
from shared.inference.model import Model
from shared.inference.table import ENGINES, EngineEntry, choose_engine, formats_of, local_engines
from shared.models.manifest import MANIFEST_NAME, BatchingSection, Manifest, Placement
from shared.models.repository import StoredModel
from shared.registry import load

OpenEngine = Callable[[str, Path, Manifest], Engine]  # A key of the table of engines, the model file, its manifest.


def open_stored(
    stored: StoredModel,
    engines: Mapping[str, EngineEntry],
    open_engine: OpenEngine,
    *,
    engine: str | None = None,
    max_batch: int | None = None,
) -> Model:
    """Checks the file of a model and opens it on one of `engines`, without warm-up.

    Args:
        stored: The model.
        engines: The engines to choose from.
        open_engine: Opens the chosen engine.
        engine: The engine; None for the default of the format.
        max_batch: The largest batch, instead of the manifest's.

    Raises:
        ConfigError: the manifest names an unknown format, or an engine that cannot read it.
        EngineError: the file cannot be run as the manifest describes.
        DeviceError: the device does not exist.
        SkylaneError: the engine does not read the format, or see `StoredModel.card` and `StoredModel.file`.
    """
    chosen = _chosen(stored, engines, engine)
    card, path = stored.card(), stored.file()
    manifest = stored.manifest.with_labels(card.labels)  # The warm-up checks the classes against the labels.
    if max_batch is not None:
        manifest = manifest.model_copy(update={"batching": BatchingSection(max_size=max_batch)})
    opened = open_engine(chosen, path, manifest)
    try:
        stored.check_hash(path)  # The file may have been replaced while it was being opened.
    except SkylaneError:
        opened.close()
        raise
    return Model(manifest, card, opened)


def open_local(stored: StoredModel, placement: Placement) -> Model:
    """Opens a model on an engine that a vehicle can use; see `open_stored`.

    Raises:
        MissingExtraError: the library of the engine is not installed.
    """

    def open_engine(name: str, path: Path, manifest: Manifest) -> Engine:
        opened: Engine = load("engine", ENGINES, name)(path, manifest, placement)
        return opened

    return open_stored(stored, local_engines(stored.manifest.engine), open_engine)


def _chosen(stored: StoredModel, engines: Mapping[str, EngineEntry], engine: str | None) -> str:
    form = stored.manifest.format
    try:
        return choose_engine(engines, form, engine)
    except SkylaneError as error:
        if form not in formats_of(engines):
            raise ConfigError(stored.folder / MANIFEST_NAME, str(error), "format") from error
        if engine == stored.manifest.engine:
            raise ConfigError(stored.folder / MANIFEST_NAME, str(error), "engine") from error
        raise
