"""The base of engines that run a model on another server: checks its interface, sends batches, and recovers from outages."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from cloud.engines.remote.channel import RemoteChannel, RemoteError
from shared.inference.engine import EngineError, Images, InferenceError, ModelUnavailableError, Outputs, choose_device
from shared.inference.pre_postprocess import Array, file_precision
from shared.inference.tensor_binding import TensorBinding, TensorInfo
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, MAX_TENSORS, TensorsError
from shared.models.manifest import Manifest, Placement
from shared.sanitize import printable

MAX_NAME = 256  # Characters of a tensor's name or a version.

_SHOWN_VERSION = 64  # Characters of a version in messages.
_VERIFIED_S = 1.0  # Time after a reply in which the server cannot have been replaced, because none starts faster.


@dataclass(frozen=True, slots=True)
class RemoteModelMetadata:
    """A server's description of a model."""

    model: str
    version: str  # Empty if the server reports none or several.
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    needs_all: bool  # Every input is required; False if some may be optional, which only the server knows.

    @property
    def sha256(self) -> str:
        """The hash of this description. It identifies the interface; a change of the weights alone is invisible."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class ServerReply(NamedTuple):
    """The outputs of a batch by tensor name, and the version that computed them (empty if not reported)."""

    version: str
    arrays: Mapping[str, Array]


def arrays_by_name(arrays: Iterable[tuple[str, Array]]) -> dict[str, Array]:
    """Collects a reply's arrays, stopping before their total size exceeds MAX_BYTES.

    `arrays` is consumed lazily: a few bytes of a reply can declare a tensor of gigabytes.

    Raises:
        TensorsError: the arrays are too large.
    """
    found: dict[str, Array] = {}
    size = 0
    for name, array in arrays:
        size += array.nbytes
        if size > MAX_BYTES:
            raise TensorsError(f"takes, with those before it, more than {MAX_BYTES} bytes: request fewer outputs")
        found[name] = array
    return found


class RemoteEngine:
    """Runs the model that the manifest's `remote` section names; preprocessing and postprocessing happen here.

    The device is the server's address; the server chooses its own device and threads. A subclass implements the protocol
    of one kind of server; its methods raise RemoteError, and TensorsError for an invalid tensor.
    """

    name: str

    def describe(self, timeout_s: float, *, wait_for_ready: bool = False) -> RemoteModelMetadata:
        """Returns the model's inputs and outputs; `wait_for_ready` waits for a server that is not reachable yet."""
        raise NotImplementedError

    def request(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> ServerReply:
        """Returns the named outputs."""
        raise NotImplementedError

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Connects to the server and compares its model with the manifest at `path`.

        Raises:
            EngineError: the server cannot be reached, or its model does not match the manifest.
            DeviceError: a GPU of this machine was requested.
        """
        assert manifest.remote is not None
        remote = manifest.remote
        self.precision = file_precision(manifest, placement, self.name, path)
        choose_device(placement.device, 0, self.name, "have the server use its own")
        self.device = remote.address
        self.remote, self.timeout_s, self.signature = remote, remote.timeout_ms / 1000, manifest.signature
        self._verified_until_s = 0.0  # By time.monotonic.
        with ExitStack() as opened:
            try:
                self.channel = opened.enter_context(closing(RemoteChannel(remote.address)))
                self._metadata = self.describe(remote.connect_timeout_s, wait_for_ready=True)
            except RemoteError as error:
                problem = f"{error}: is a {self.name} server with model {remote.model!r} at {remote.address}?"
                raise EngineError(path, problem) from error
            self._binding = _binding(self._metadata, manifest, path)
            opened.pop_all()
        self.batch_size = self._binding.batch_size

    @property
    def sha256(self) -> str:
        """The hash of the server's description: name, version, inputs and outputs."""
        return self._metadata.sha256

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`.

        Raises:
            ModelUnavailableError: the server is unreachable, too slow, or serves another model by now. The next call
                tries again.
            InferenceError: the server refused the batch, or its reply does not match its description.
        """
        outputs = {tensor.name: tensor for tensor in self._binding.heads.values()}
        try:
            self._verify_model()
            reply = self.request(self._binding.inputs(batch), list(outputs))
            self._check_version(reply.version)
        except RemoteError as error:
            self._verified_until_s = 0.0
            raise (ModelUnavailableError if error.is_unavailable else InferenceError)(str(error)) from error
        except TensorsError as error:
            raise InferenceError(f"the model's server answers with a tensor that {error}") from error
        self._verified_until_s = time.monotonic() + _VERIFIED_S
        for tensor in outputs.values():
            _check_output(tensor, reply.arrays.get(tensor.name), len(batch))
        return self._binding.outputs(reply.arrays)

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()

    def _verify_model(self) -> None:
        """Asks for the server's description again after a pause or failure: it may have restarted with another model."""
        if time.monotonic() < self._verified_until_s:
            return
        if self.describe(self.timeout_s) != self._metadata:
            problem = "the server's model was changed since it was loaded: load it again"
            raise RemoteError(problem, is_unavailable=True)

    def _check_version(self, version: str) -> None:
        if version != self._metadata.version and "" not in (version, self._metadata.version):
            raise RemoteError(
                f"the server used version {printable(version[:_SHOWN_VERSION])} of its model, and version "
                f"{self._metadata.version} was loaded: load it again",
                is_unavailable=True,
            )


def _binding(metadata: RemoteModelMetadata, manifest: Manifest, path: Path) -> TensorBinding:
    """Checks a server's description against the manifest.

    Raises:
        EngineError: they differ, or the description is invalid.
    """
    if manifest.sha256 not in ("", metadata.sha256):
        problem = f"the server's model has SHA-256 {metadata.sha256[:12]}…, the manifest {manifest.sha256[:12]}…: "
        raise EngineError(path, f"{problem}its inputs, outputs or version are different")
    _check_metadata(metadata, path)
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    outputs = {tensor.name: tensor for tensor in metadata.outputs}
    binding = TensorBinding(inputs, outputs, manifest, path, needs_all=metadata.needs_all)
    for tensor in binding.heads.values():
        if tensor.dtype == "bytes":
            raise EngineError(path, f"output {tensor.name!r} holds strings: a head holds numbers")
    return binding


def _check_output(tensor: TensorInfo, values: Array | None, size: int) -> None:
    """Checks that an output in a reply is as the server declared it, for `size` images."""
    if values is None:
        raise InferenceError(f"the reply of the model's server lacks output {tensor.name!r}")
    if values.dtype.name != (tensor.dtype or values.dtype.name) or values.dtype == object:
        declared = tensor.dtype or "numbers"
        raise InferenceError(f"the model's server gives {tensor.name!r} as {values.dtype}, it declared {declared}")
    if values.ndim == 0 or len(values) != size:
        raise InferenceError(f"the model's server gives {tensor.name!r} of shape {values.shape} for {size} images")


def _check_metadata(metadata: RemoteModelMetadata, path: Path) -> None:
    """Checks the size and the names of a server's description.

    Raises:
        EngineError: it has too many inputs, outputs or dimensions, or a name that is too long or not printable.
    """
    for tensors in (metadata.inputs, metadata.outputs):
        if len(tensors) > MAX_TENSORS:
            raise EngineError(path, f"the server declares {len(tensors)} tensors: a model has at most {MAX_TENSORS}")
        for tensor in tensors:
            if len(tensor.shape or ()) > MAX_DIMENSIONS:
                raise EngineError(path, f"the server declares a shape of more than {MAX_DIMENSIONS} dimensions")
    names = [metadata.version, *(tensor.name for tensor in (*metadata.inputs, *metadata.outputs))]
    if any(len(name) > MAX_NAME or not name.isprintable() for name in names):
        raise EngineError(
            path, f"the server declares a name that is not printable, or of more than {MAX_NAME} characters"
        )
