"""The engine of Triton: a model on any server that speaks the Open Inference Protocol over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any

from cloud.engines.pre_postprocess import Array
from cloud.engines.remote.channel import RemoteChannel
from cloud.engines.remote.engine import RemoteEngine, RemoteModelMetadata, RemoteTensor, ServerReply, gathered
from cloud.models.manifest import Manifest
from shared.encoding.open_inference_tensors import datatype_of, dtype_name, from_contents, from_raw, to_raw
from shared.encoding.protobuf import message_class

_SERVICE = "inference.GRPCInferenceService"


class TritonEngine(RemoteEngine):
    """Batches go as they are, raw; a model that takes one picture without a batch is not spoken to."""

    name = "triton"

    @staticmethod
    def speak(line: RemoteChannel, manifest: Manifest) -> "OpenInferenceClient":
        """See RemoteEngine."""
        return OpenInferenceClient(line, manifest)


class OpenInferenceClient:
    """The Open Inference Protocol, version 2."""

    def __init__(self, line: RemoteChannel, manifest: Manifest) -> None:
        assert manifest.remote is not None
        self._line = line
        self._model, self._version = manifest.remote.model, manifest.remote.version or ""

    def describe(self, timeout_s: float, *, waits: bool = False) -> RemoteModelMetadata:
        """See ModelServerClient."""
        request = message_class("inference.ModelMetadataRequest")(name=self._model, version=self._version)
        told = self._line.call(_SERVICE, "ModelMetadata", request, timeout_s, waits=waits)
        version = told.versions[0] if len(told.versions) == 1 else self._version
        return RemoteModelMetadata(self._model, version, _tensors(told.inputs), _tensors(told.outputs), needs_all=False)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], timeout_s: float) -> ServerReply:
        """See ModelServerClient."""
        request = message_class("inference.ModelInferRequest")(model_name=self._model, model_version=self._version)
        for name, values in inputs.items():
            request.inputs.add(name=name, datatype=datatype_of(values), shape=values.shape)
            request.raw_input_contents.append(to_raw(values))
        for name in outputs:
            request.outputs.add(name=name)
        told = self._line.call(_SERVICE, "ModelInfer", request, timeout_s)
        raw = told.raw_output_contents
        arrays = (
            (
                output.name,
                from_raw(raw[place], output.datatype, output.shape)
                if place < len(raw)
                else from_contents(output.contents, output.datatype, output.shape),
            )
            for place, output in enumerate(told.outputs)
            if output.name in outputs
        )
        return ServerReply(told.model_version, gathered(arrays))


def _tensors(told: Sequence[Any]) -> tuple[RemoteTensor, ...]:
    return tuple(
        RemoteTensor(each.name, dtype_name(each.datatype), tuple(side if side >= 0 else None for side in each.shape))
        for each in told
    )
