"""TensorFlow Serving's gRPC services."""

from collections.abc import Mapping
from typing import NoReturn

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceCall, start_inference
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall, parse_message, serialize
from cloud.gateway.grpc.service import Method
from cloud.gateway.tf_serving.grpc_messages import (
    ENCODING_KEY,
    parse_encoding,
    read_predict,
    version_choice,
    write_predict,
)
from cloud.gateway.tf_serving.models import find_version, model_spec, signature_defs, version_numbers
from cloud.gateway.tf_serving.signatures import find_signature
from shared.encoding.protobuf import message_class

CODEC_KEY = "skylane-codec"  # Codec of `image_bytes` that are neither JPEG nor PNG: raw, lz4 or zstd.
MASK_CODEC_KEY = "skylane-mask-codec"  # Codec of the masks in `result_bytes`.

_FRONTEND = "tfs-grpc"
_METADATA_FIELD = "signature_def"


class PredictionService:
    """`tensorflow.serving.PredictionService`."""

    name = "tensorflow.serving.PredictionService"

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    def methods(self) -> Mapping[str, Method]:
        """See `Service`."""
        unsupported = {name: Method(_unsupported) for name in ("Classify", "Regress", "MultiInference")}
        return {"Predict": Method(self._predict), "GetModelMetadata": Method(self._metadata), **unsupported}

    def _predict(self, call: GrpcCall) -> bytes:
        caller = call.authenticate(self._worker.authenticator)
        request = read_predict(call.data)
        signature = find_signature(request.signature, is_vehicle=call.frame is not None)
        signature.check_inputs(request.inputs)
        encoding = parse_encoding(call.text(ENCODING_KEY))
        submission = self._worker.submission
        inference = InferenceCall(
            origin=call.origin(_FRONTEND, caller, self._worker),
            model=request.model,
            inputs=request.inputs,
            version=find_version(submission, request.model, request.version, request.label),
            outputs=signature.requested_outputs(request.outputs),
            codec=call.text(CODEC_KEY),
            mask_codec=call.text(MASK_CODEC_KEY) or "png",
        )
        reply = call.wait_for(start_inference(submission, inference))
        spec = model_spec(reply.card, signature.name)
        return write_predict(reply.outputs, spec, encoding, self._worker.settings.max_message_bytes)

    def _metadata(self, call: GrpcCall) -> bytes:
        call.authenticate(self._worker.authenticator)
        request = parse_message("tensorflow.serving.GetModelMetadataRequest", call.data)
        if list(request.metadata_field) != [_METADATA_FIELD]:
            given = ", ".join(name[:40] for name in request.metadata_field[:8]) or "none"
            raise InvalidError(f"metadata_field {given}: request {_METADATA_FIELD} only")
        submission = self._worker.submission
        name = request.model_spec.name
        served = submission.find(name, find_version(submission, name, *version_choice(request.model_spec)))
        response = message_class("tensorflow.serving.GetModelMetadataResponse")(model_spec=model_spec(served.card))
        response.metadata[_METADATA_FIELD].Pack(signature_defs(served))
        return serialize(response)


class ModelService:
    """`tensorflow.serving.ModelService`."""

    name = "tensorflow.serving.ModelService"

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    def methods(self) -> Mapping[str, Method]:
        """See `Service`."""
        return {"GetModelStatus": Method(self._status), "HandleReloadConfigRequest": Method(_unsupported)}

    def _status(self, call: GrpcCall) -> bytes:
        call.authenticate(self._worker.authenticator)
        spec = parse_message("tensorflow.serving.GetModelStatusRequest", call.data).model_spec
        submission = self._worker.submission
        version = find_version(submission, spec.name, *version_choice(spec))
        response = message_class("tensorflow.serving.GetModelStatusResponse")()
        for number in version_numbers(submission, spec.name, version):
            status = response.model_version_status.add(version=number, state="AVAILABLE")
            status.status.SetInParent()
        return serialize(response)


def _unsupported(_: GrpcCall) -> NoReturn:
    raise ApiError(
        ErrorCode.UNIMPLEMENTED,
        "this worker supports only Predict, GetModelMetadata and GetModelStatus: call Predict; load models with "
        "`skylane cloud control`",
    )
