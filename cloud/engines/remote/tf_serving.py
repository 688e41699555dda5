"""The TensorFlow Serving engine: a model on a server with the PredictionService over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any

from cloud.engines.remote.channel import RemoteError, parsed
from cloud.engines.remote.engine import RemoteEngine, RemoteModelMetadata, ServerReply, arrays_by_name
from shared.errors import suggestion
from shared.inference.pre_postprocess import Array
from shared.inference.tensor_binding import TensorInfo
from shared.messages.protobuf import message_class
from shared.messages.tensorflow_tensors import dtype_name, from_tensor_proto, to_tensor_proto

_SERVICE = "tensorflow.serving.PredictionService"
_SIGNATURES = "signature_def"
_RAW_TENSORS = (("skylane-tensors", "content"),)  # Honoured by Skylane workers, ignored by TensorFlow Serving.


class TfServingEngine(RemoteEngine):
    """Sends batches to TensorFlow Serving; the manifest's tensors are the keys of its `signature`."""

    name = "tf_serving"

    def describe(self, timeout_s: float, *, wait_for_ready: bool = False) -> RemoteModelMetadata:
        """See RemoteEngine.

        Raises:
            RemoteError: the call failed, or the model has no such signature.
        """
        request = message_class("tensorflow.serving.GetModelMetadataRequest")(metadata_field=[_SIGNATURES])
        self._set_model(request.model_spec)
        reply = self.channel.call(_SERVICE, "GetModelMetadata", request, timeout_s, wait_for_ready=wait_for_ready)
        signatures = parsed(message_class("tensorflow.serving.SignatureDefMap"), reply.metadata[_SIGNATURES].value)
        if self.signature not in signatures.signature_def:
            hint = suggestion(self.signature, signatures.signature_def)
            problem = f"the server's model has no signature {self.signature!r}{hint}"
            raise RemoteError(problem, is_unavailable=True)
        signature = signatures.signature_def[self.signature]
        inputs, outputs = _tensors(signature.inputs), _tensors(signature.outputs)
        return RemoteModelMetadata(self.remote.model, _version(reply.model_spec), inputs, outputs, needs_all=True)

    def request(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> ServerReply:
        """See RemoteEngine."""
        request = message_class("tensorflow.serving.PredictRequest")(output_filter=outputs)
        self._set_model(request.model_spec)
        request.model_spec.signature_name = self.signature
        for name, values in inputs.items():
            to_tensor_proto(values, request.inputs[name])
        reply = self.channel.call(_SERVICE, "Predict", request, self.timeout_s, metadata=_RAW_TENSORS)
        arrays = ((name, from_tensor_proto(reply.outputs[name])) for name in outputs if name in reply.outputs)
        return ServerReply(_version(reply.model_spec), arrays_by_name(arrays))

    def _set_model(self, spec: Any) -> None:
        """Sets the model's name and version; a version that is not a number is one of the server's labels."""
        spec.name = self.remote.model
        version = self.remote.version
        if version is not None and version.isdecimal():
            spec.version.value = int(version)
        elif version is not None:
            spec.version_label = version


def _version(spec: Any) -> str:
    return str(spec.version.value) if spec.HasField("version") else ""


def _tensors(infos: Mapping[str, Any]) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(name, dtype_name(info.dtype), _shape(info.tensor_shape)) for name, info in sorted(infos.items())
    )


def _shape(proto: Any) -> tuple[int | None, ...] | None:
    return None if proto.unknown_rank else tuple(dim.size if dim.size >= 0 else None for dim in proto.dim)
