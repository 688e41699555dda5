"""The Triton engine: a model on any server with the Open Inference Protocol over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any

from cloud.engines.remote.engine import RemoteEngine, RemoteModelMetadata, ServerReply, arrays_by_name
from shared.inference.pre_postprocess import Array
from shared.inference.tensor_binding import TensorInfo
from shared.messages.open_inference_tensors import datatype_of, dtype_name, from_contents, from_raw, to_raw
from shared.messages.protobuf import message_class

_SERVICE = "inference.GRPCInferenceService"


class TritonEngine(RemoteEngine):
    """Sends batches as raw tensors; models without a batch dimension are not supported."""

    name = "triton"

    def describe(self, timeout_s: float, *, wait_for_ready: bool = False) -> RemoteModelMetadata:
        """See RemoteEngine."""
        request = message_class("inference.ModelMetadataRequest")(
            name=self.remote.model, version=self.remote.version or ""
        )
        reply = self.channel.call(_SERVICE, "ModelMetadata", request, timeout_s, wait_for_ready=wait_for_ready)
        version = reply.versions[0] if len(reply.versions) == 1 else self.remote.version or ""
        inputs, outputs = _tensors(reply.inputs), _tensors(reply.outputs)
        return RemoteModelMetadata(self.remote.model, version, inputs, outputs, needs_all=False)

    def request(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> ServerReply:
        """See RemoteEngine."""
        request = message_class("inference.ModelInferRequest")(
            model_name=self.remote.model, model_version=self.remote.version or ""
        )
        for name, values in inputs.items():
            request.inputs.add(name=name, datatype=datatype_of(values), shape=values.shape)
            request.raw_input_contents.append(to_raw(values))
        for name in outputs:
            request.outputs.add(name=name)
        reply = self.channel.call(_SERVICE, "ModelInfer", request, self.timeout_s)
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


def _tensors(metadata: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(each.name, dtype_name(each.datatype), tuple(side if side >= 0 else None for side in each.shape))
        for each in metadata
    )
