"""The Triton engine: a model on any server with the Open Inference Protocol over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any

from cloud.engines.pre_postprocess import Array
from cloud.engines.remote.channel import RemoteChannel
from cloud.engines.remote.engine import RemoteEngine, RemoteModelMetadata, RemoteTensor, ServerReply, arrays_by_name
from cloud.models.manifest import Manifest
from shared.encoding.open_inference_tensors import datatype_of, dtype_name, from_contents, from_raw, to_raw
from shared.encoding.protobuf import message_class

_SERVICE = "inference.GRPCInferenceService"


class TritonEngine(RemoteEngine):
    """Sends batches as raw tensors; models without a batch dimension are not supported."""

    name = "triton"

    @staticmethod
    def client(channel: RemoteChannel, manifest: Manifest) -> "OpenInferenceClient":
        """See RemoteEngine."""
        return OpenInferenceClient(channel, manifest)


class OpenInferenceClient:
    """A client of the Open Inference Protocol, version 2."""

    def __init__(self, channel: RemoteChannel, manifest: Manifest) -> None:
        assert manifest.remote is not None
        self._channel = channel
        self._model, self._version = manifest.remote.model, manifest.remote.version or ""

    def describe(self, timeout_s: float, *, wait_for_ready: bool = False) -> RemoteModelMetadata:
        """See ModelServerClient."""
        request = message_class("inference.ModelMetadataRequest")(name=self._model, version=self._version)
        reply = self._channel.call(_SERVICE, "ModelMetadata", request, timeout_s, wait_for_ready=wait_for_ready)
        version = reply.versions[0] if len(reply.versions) == 1 else self._version
        inputs, outputs = _tensors(reply.inputs), _tensors(reply.outputs)
        return RemoteModelMetadata(self._model, version, inputs, outputs, needs_all=False)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], timeout_s: float) -> ServerReply:
        """See ModelServerClient."""
        request = message_class("inference.ModelInferRequest")(model_name=self._model, model_version=self._version)
        for name, values in inputs.items():
            request.inputs.add(name=name, datatype=datatype_of(values), shape=values.shape)
            request.raw_input_contents.append(to_raw(values))
        for name in outputs:
            request.outputs.add(name=name)
        reply = self._channel.call(_SERVICE, "ModelInfer", request, timeout_s)
        raw = reply.raw_output_contents
        arrays = (
            (
                output.name,
                from_raw(raw[place], output.datatype, output.shape)
                if place < len(raw)
                else from_contents(output.contents, output.datatype, output.shape),
            )
            for place, output in enumerate(reply.outputs)
            if output.name in outputs
        )
        return ServerReply(reply.model_version, arrays_by_name(arrays))


def _tensors(metadata: Sequence[Any]) -> tuple[RemoteTensor, ...]:
    return tuple(
        RemoteTensor(each.name, dtype_name(each.datatype), tuple(side if side >= 0 else None for side in each.shape))
        for each in metadata
    )
