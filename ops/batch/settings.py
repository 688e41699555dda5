"""The settings of a batch, which its processes on any machine receive."""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import model_validator

from edge.config import BITS, ENCODINGS, Demosaic
from ops.batch.executor import EXECUTORS
from ops.batch.output.mask_formats import MASK_FORMATS
from shared.config import OneOf, Section, setting
from shared.errors import SkylaneError
from shared.imaging.bit_depth import Bits
from shared.imaging.geometry import Resize
from shared.inference.table import AUTO, DEVICE_NAME, ENGINES, choose_engine
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import VERSION_NAME
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository, StoredModel, default_root


class BatchSettings(Section):
    """The arguments of `skylane batch`; they can be pickled."""

    library: Path
    out: Path
    model: str
    model_sha256: str = ""  # Hash of the model when the batch began; see `pinned`.
    model_version: str | None = setting(None, "Version of the model.", shown="the highest", pattern=VERSION_NAME)
    repository: Path | None = setting(None, "The model repository.", "--models")
    engine: Annotated[str, OneOf("engine", ENGINES)] | None = setting(
        None, "Engine that runs the model.", shown="from the model's manifest"
    )
    device: str = setting("auto", "Device of the model: auto, cpu or gpu:N.", pattern=DEVICE_NAME)
    precision: Precision | None = setting(None, "Precision of the computation.", shown="from the model's manifest")
    threads: int = setting(
        1, "Threads of the engine in each process; another number may change single pixels.", ge=1, le=256
    )
    topics: tuple[str, ...] = setting((), "Image topic to use (repeatable).", "-t", "--topic", shown="all cameras")
    bits: Bits = BITS
    encodings: tuple[str, ...] = ENCODINGS
    resize: Resize | None = setting(
        None, "How frames are resized to the model's input size.", shown="as the model's card says"
    )
    demosaic: Demosaic = setting(
        "auto",
        "How Bayer frames become colour; auto: binning if the model's input needs less than half the resolution.",
    )
    masks: Annotated[str, OneOf("mask format", MASK_FORMATS)] = setting(
        "png", "What the masks are written as: png or npz files of the model's size, or a bag of the frames' size."
    )
    pictures: int = setting(
        0, "Also write every N-th frame of each bag with its mask drawn on it, as JPEG; 0: none.", metavar="N", ge=0
    )
    executor: Annotated[str, OneOf("executor", EXECUTORS)] = setting("local", "What runs the batch.")
    processes: int | None = setting(
        None, "Processes on this machine.", shown="by cores, threads and free memory", ge=1, le=1024
    )
    ray_address: str | None = setting(
        None, "Host and port of the Ray cluster, for the executor ray.", shown="a cluster that is started here"
    )

    @model_validator(mode="after")
    def _address_has_a_cluster(self) -> Self:
        if self.ray_address is not None and self.executor == "local":
            raise ValueError("`ray_address`: there is no cluster: set `executor` to ray, or leave the address out")
        return self

    def pinned(self) -> Self:
        """Returns the settings with the version of the model, by default the highest one now, and its hash.

        Raises:
            SkylaneError: see `stored_model`.
        """
        stored = self.stored_model()
        return self.model_copy(update={"model_version": stored.version, "model_sha256": stored.manifest.sha256})

    def stored_model(self) -> StoredModel:
        """Returns the model in the repository.

        Raises:
            SkylaneError: it is no longer the one that the batch began with;
                there is no such model or version, or its manifest is invalid.
        """
        stored = Repository(self.repository or default_root()).find(self.model, self.model_version)
        if self.model_sha256 not in ("", stored.manifest.sha256):
            raise SkylaneError(f"model {stored.name} {stored.version} was replaced while the batch ran: run it again")
        return stored

    def card(self) -> ModelCard:
        """Returns the card of the model, which is not loaded; see `stored_model`."""
        return self.stored_model().card()

    def chosen_engine(self) -> str:
        """Returns the name of the engine: a fixed one, where a manifest leaves the choice to a measurement.

        Raises:
            SkylaneError: the engine does not read the model's format.
        """
        manifest = self.stored_model().manifest
        engine = self.engine or manifest.engine
        return choose_engine(ENGINES, manifest.format, None if engine == AUTO else engine)

    def placement(self) -> Placement:
        """Returns the device, threads and precision of the model."""
        return Placement(self.device, intra_threads=self.threads, inter_threads=1, precision=self.precision)

    def identity(self) -> dict[str, Any]:
        """Returns everything that a result depends on beside the bag, as plain data for a manifest."""
        stored = self.stored_model()
        described = f"{stored.manifest.model_dump_json()} {stored.labels()}"
        return {
            "model": stored.name,
            "version": stored.version,
            "model_sha256": stored.manifest.sha256,
            "manifest_sha256": hashlib.sha256(described.encode()).hexdigest(),
            "engine": self.chosen_engine(),
            "precision": self.precision,
            **{
                key: getattr(self, key)
                for key in ("device", "threads", "resize", "demosaic", "masks", "pictures", "bits")
            },
            "topics": list(self.topics),
            "encodings": list(self.encodings),
        }
