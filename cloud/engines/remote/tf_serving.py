"""The engine of TensorFlow TfServingClient: a model on a server that speaks its PredictionService over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any

from cloud.engines.pre_postprocess import Array
from cloud.engines.remote.channel import RemoteChannel, RemoteError, parsed
from cloud.engines.remote.engine import RemoteEngine, RemoteModelMetadata, RemoteTensor, ServerReply, gathered
from cloud.models.manifest import Manifest
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import dtype_name, from_tensor_proto, to_tensor_proto
from shared.errors import suggestion

_SERVICE = "tensorflow.serving.PredictionService"
_SIGNATURES = "signature_def"
_RAW = (("skylane-tensors", "content"),)  # A worker of ours answers so; TensorFlow TfServingClient does not know it.


class TfServingEngine(RemoteEngine):
    """Batches go as they are; the manifest's tensors are keys of its `signature`."""

    name = "tf_serving"

    @staticmethod
    def speak(line: RemoteChannel, manifest: Manifest) -> "TfServingClient":
        """See RemoteEngine."""
        return TfServingClient(line, manifest)


class TfServingClient:
    """TensorFlow TfServingClient's PredictionService."""

    def __init__(self, line: RemoteChannel, manifest: Manifest) -> None:
        assert manifest.remote is not None
        self._line, self._remote, self._signature = line, manifest.remote, manifest.signature

    def describe(self, timeout_s: float, *, waits: bool = False) -> RemoteModelMetadata:
        """See ModelServerClient.

        Raises:
            RemoteError: the model has no such signature.
        """
        request = message_class("tensorflow.serving.GetModelMetadataRequest")(metadata_field=[_SIGNATURES])
        self._name(request.model_spec)
        told = self._line.call(_SERVICE, "GetModelMetadata", request, timeout_s, waits=waits)
        signatures = parsed(message_class("tensorflow.serving.SignatureDefMap"), told.metadata[_SIGNATURES].value)
        if self._signature not in signatures.signature_def:
            near = suggestion(self._signature, signatures.signature_def)
            raise RemoteError(f"the server's model has no signature {self._signature!r}{near}", is_lost=True)
        signature = signatures.signature_def[self._signature]
        ends = (_tensors(signature.inputs), _tensors(signature.outputs))
        return RemoteModelMetadata(self._remote.model, _version(told.model_spec), *ends, needs_all=True)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], timeout_s: float) -> ServerReply:
        """See ModelServerClient."""
        request = message_class("tensorflow.serving.PredictRequest")(output_filter=outputs)
        self._name(request.model_spec)
        request.model_spec.signature_name = self._signature
        for name, values in inputs.items():
            to_tensor_proto(values, request.inputs[name])
        told = self._line.call(_SERVICE, "Predict", request, timeout_s, beside=_RAW)
        asked = ((name, from_tensor_proto(told.outputs[name])) for name in outputs if name in told.outputs)
        return ServerReply(_version(told.model_spec), gathered(asked))

    def _name(self, spec: Any) -> None:
        """Name the model; a version that is no number is one of the server's labels."""
        spec.name = self._remote.model
        version = self._remote.version
        if version is not None and version.isdecimal():
            spec.version.value = int(version)
        elif version is not None:
            spec.version_label = version


def _version(spec: Any) -> str:
    return str(spec.version.value) if spec.HasField("version") else ""


def _tensors(told: Mapping[str, Any]) -> tuple[RemoteTensor, ...]:
    return tuple(
        RemoteTensor(name, dtype_name(info.dtype), _shape(info.tensor_shape)) for name, info in sorted(told.items())
    )


def _shape(told: Any) -> tuple[int | None, ...] | None:
    return None if told.unknown_rank else tuple(dim.size if dim.size >= 0 else None for dim in told.dim)
