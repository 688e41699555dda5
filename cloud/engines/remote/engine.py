"""A model on another server: asked what it takes and gives, given batches, and found again when it was away."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from cloud.engines.devices import choose
from cloud.engines.engine import EngineError, Images, InferenceError, Outputs, Placement, UnavailableError
from cloud.engines.pre_postprocess import (
    Array,
    answer,
    check_other_inputs,
    check_output,
    file_precision,
    named,
    preprocessor_for,
)
from cloud.engines.remote.channel import Line, RemoteError
from cloud.models.manifest import Manifest
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, MAX_TENSORS, TensorsError
from shared.sanitize import printable

MAX_NAME = 256  # Characters of a tensor's name or a version.

_SHOWN = 64  # Characters of a version, in what is told of another one.
_SURE_S = 1.0  # After so long without an answer the server may be another one: no server starts faster.


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """An input or output as a server tells it."""

    name: str
    dtype: str | None  # As NumPy has it; None: not told, or none that is spoken here.
    shape: tuple[int | None, ...] | None  # None: not told; a side: open.


@dataclass(frozen=True, slots=True)
class Description:
    """What a server says of a model."""

    model: str
    version: str  # Empty where it tells several or none.
    inputs: tuple[RemoteTensor, ...]
    outputs: tuple[RemoteTensor, ...]
    needs_all: bool  # Of its inputs; False: there may be some that a call can leave out, and the server knows which.

    @property
    def sha256(self) -> str:
        """Of all this. It tells one interface from another; weights that were changed under it nobody can tell."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class Answered(NamedTuple):
    """A batch's answer: the version that gave it, empty where that is not told, and arrays by the tensor's name."""

    version: str
    arrays: Mapping[str, Array]


def gathered(arrays: Iterable[tuple[str, Array]]) -> dict[str, Array]:
    """An answer's arrays by name, each made when the ones before it are known to be within the bound of all together.

    Raises:
        TensorsError: they are larger than that: a shape that nothing fills takes two bytes to tell.
    """
    found: dict[str, Array] = {}
    size = 0
    for name, array in arrays:
        size += array.nbytes
        if size > MAX_BYTES:
            raise TensorsError(f"takes, with those before it, more than {MAX_BYTES} bytes: ask for less")
        found[name] = array
    return found


class Dialect(Protocol):
    """What a kind of server speaks, on a line. Its errors are RemoteError, and TensorsError where a tensor is none."""

    def describe(self, timeout_s: float, *, waits: bool = False) -> Description:
        """What the model takes and gives; `waits`: for a server that is not there yet."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], timeout_s: float) -> Answered:
        """The outputs of these names."""


class RemoteEngine:
    """Has a server infer what its manifest's `remote` names; scaling before it and arg max after it happen here.

    The device is the server's address, `--device` and threads are the server's matter.
    """

    name: str

    @staticmethod
    def speak(line: Line, manifest: Manifest) -> Dialect:
        """What servers of this kind speak."""
        raise NotImplementedError

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Ask the server of its model. `path`: of the manifest.

        Raises:
            EngineError: the server is not there, or its model is not what the manifest says.
            DeviceError: a GPU of this machine is asked for.
        """
        assert manifest.remote is not None
        remote = manifest.remote
        self._path, self._manifest = path, manifest
        self.precision = file_precision(manifest, placement, self.name, path)
        choose(placement.device, 0, self.name, "have the server use its own")
        self.device = remote.address
        self._timeout_s = remote.timeout_ms / 1000
        self._sure_until_s = 0.0  # By time.monotonic.
        with ExitStack() as opened:
            try:
                self._line = opened.enter_context(closing(Line(remote.address)))
                self._dialect = self.speak(self._line, manifest)
                self._held = self._dialect.describe(remote.connect_timeout_s, waits=True)
            except RemoteError as error:
                problem = f"{error}: is a {self.name} server with model {remote.model!r} at {remote.address}?"
                raise EngineError(path, problem) from error
            self._fit(self._held)
            opened.pop_all()

    @property
    def sha256(self) -> str:
        """Of what the server says of the model: its name, version, inputs and outputs."""
        return self._held.sha256

    def infer(self, batch: Images) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`.

        Raises UnavailableError where the server is away, slow or another one by now; the next call asks it again.
        """
        section = self._manifest.input
        size = len(batch)
        inputs = {section.tensor: self._feed(batch)} | {name: _filled(*told, size) for name, told in self._rest.items()}
        try:
            self._be_sure()
            answered = self._dialect.infer(inputs, list(self._outputs), self._timeout_s)
            self._same_version(answered.version)
        except RemoteError as error:
            self._sure_until_s = 0.0
            raise (UnavailableError if error.is_lost else InferenceError)(str(error)) from error
        except TensorsError as error:
            raise InferenceError(f"the model's server answers with a tensor that {error}") from error
        self._sure_until_s = time.monotonic() + _SURE_S
        return {head: self._head(head, answered.arrays, size) for head in self._manifest.heads}

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def _fit(self, told: Description) -> None:
        """Take what the server says, and check it against the manifest."""
        manifest, path = self._manifest, self._path
        if manifest.sha256 not in ("", told.sha256):
            problem = f"the server's model has SHA-256 {told.sha256[:12]}…, the manifest {manifest.sha256[:12]}…: "
            raise EngineError(path, f"{problem}it takes or gives something else, or is another version")
        inputs = {tensor.name: tensor for tensor in told.inputs}
        outputs = {tensor.name: tensor for tensor in told.outputs}
        _check_told(told, path)
        picture = named(inputs, manifest.input.tensor, "input", path)
        self._feed = preprocessor_for(
            picture.shape, picture.dtype or "of a type that is not spoken here", manifest, path
        )
        self.batch_size = self._feed.batch_size
        if told.needs_all:
            check_other_inputs([name for name in inputs if name != picture.name], list(manifest.input.constants), path)
        self._rest = {name: (inputs[name], value) for name, value in manifest.input.constants.items() if name in inputs}
        for tensor, _ in self._rest.values():
            _check_constant(tensor, path)
        self._outputs = {}
        for head, section in manifest.heads.items():
            tensor = named(outputs, section.tensor, "output", path)
            if tensor.dtype == "bytes":
                raise EngineError(path, f"output {tensor.name!r} holds strings: a head holds numbers")
            check_output(head, tensor.shape, manifest, path)
            self._outputs[tensor.name] = tensor

    def _be_sure(self) -> None:
        """Ask a server that was silent or failed what it serves: it may have been started anew with something else."""
        if time.monotonic() < self._sure_until_s:
            return
        if self._dialect.describe(self._timeout_s) != self._held:
            raise RemoteError("the server's model was changed since it was loaded: load it again", is_lost=True)

    def _same_version(self, version: str) -> None:
        if version != self._held.version and "" not in (version, self._held.version):
            raise RemoteError(
                f"the server answers by version {printable(version[:_SHOWN])} of its model, loaded was {self._held.version}: load it again",
                is_lost=True,
            )

    def _head(self, head: str, arrays: Mapping[str, Array], size: int) -> Array:
        """A head's answer to so many pictures, checked."""
        tensor = self._outputs[self._manifest.heads[head].tensor]
        values = arrays.get(tensor.name)
        if values is None:
            raise InferenceError(f"the model's server left output {tensor.name!r} out")
        if values.dtype.name != (tensor.dtype or values.dtype.name) or values.dtype == object:
            wanted = tensor.dtype or "numbers"
            raise InferenceError(f"the model's server gives {tensor.name!r} as {values.dtype}, it told {wanted}")
        if values.ndim == 0 or len(values) != size:
            raise InferenceError(f"the model's server gives {tensor.name!r} of shape {values.shape} to {size} pictures")
        return answer(head, values, self._feed, self._manifest, self._path)


def _check_told(told: Description, path: Path) -> None:
    """Check that what a server says of a model can be said of one.

    Raises:
        EngineError: it has too many inputs or outputs, or one of too many sides, or names that nobody could read.
    """
    for tensors in (told.inputs, told.outputs):
        if len(tensors) > MAX_TENSORS:
            raise EngineError(path, f"the server tells {len(tensors)} tensors: a model has at most {MAX_TENSORS}")
        for tensor in tensors:
            if len(tensor.shape or ()) > MAX_DIMENSIONS:
                raise EngineError(path, f"the server tells a shape of more than {MAX_DIMENSIONS} sides")
    names = [told.version, *(tensor.name for tensor in (*told.inputs, *told.outputs))]
    if any(len(name) > MAX_NAME or not name.isprintable() for name in names):
        raise EngineError(path, f"the server tells a name that is not readable, or of more than {MAX_NAME} characters")


def _check_constant(tensor: RemoteTensor, path: Path) -> None:
    """Check that an input can be filled with a number.

    Raises:
        EngineError: it takes none, or so many that no call carries them.
    """
    if tensor.dtype in (None, "bytes"):
        told = "strings" if tensor.dtype else "a type that is not spoken here"
        raise EngineError(path, f"input {tensor.name!r} takes {told}: input.constants gives numbers")
    if prod(side or 1 for side in tensor.shape or ()) * np.dtype(tensor.dtype).itemsize > MAX_BYTES:
        raise EngineError(path, f"input {tensor.name!r} takes more than {MAX_BYTES} bytes: input.constants gives less")


def _filled(tensor: RemoteTensor, value: float, size: int) -> Array:
    """A constant input for so many pictures."""
    sides = tensor.shape or ()
    return np.full([side or (size if place == 0 else 1) for place, side in enumerate(sides)], value, tensor.dtype)
