"""TensorFlow Serving's gRPC services."""

from typing import Any, NoReturn

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceCall, start_inference
from cloud.gateway.grpc.call import GrpcCall, Method, Services, parse_message
from cloud.gateway.tf_serving.grpc_messages import ENCODING_KEY, TYPED, read_predict, write_predict
from cloud.gateway.tf_serving.models import find_version, model_spec, model_status, signature_defs
from cloud.gateway.tf_serving.signatures import find_signature
from shared.encoding.protobuf import message_class

CODEC_KEY = "skylane-codec"  # Codec of `image_bytes` that are neither JPEG nor PNG: raw, lz4 or zstd.
MASK_CODEC_KEY = "skylane-mask-codec"  # Codec of the masks in `result_bytes`.

_FRONTEND = "tfs-grpc"
_METADATA_FIELD = "signature_def"


def _predict(call: GrpcCall) -> bytes:
    caller = call.authenticate()
    request = read_predict(call.data)
    signature = find_signature(request.spec.signature_name, is_vehicle=call.frame is not None)
    signature.check_inputs(request.inputs)
    inference = InferenceCall(
        origin=call.origin(_FRONTEND, caller),
        model=request.spec.name,
        inputs=request.inputs,
        version=_version(call, request.spec),
        outputs=signature.requested_outputs(request.outputs),
        codec=call.text(CODEC_KEY),
        mask_codec=call.text(MASK_CODEC_KEY) or "png",
    )
    reply = call.wait_for(start_inference(call.worker.submission, inference))
    spec = model_spec(reply.card, signature.name)
    encoding = call.text(ENCODING_KEY) or TYPED
    return write_predict(reply.outputs, spec, encoding, call.worker.settings.max_message_bytes)


def _metadata(call: GrpcCall) -> bytes:
    call.authenticate()
    request = parse_message("tensorflow.serving.GetModelMetadataRequest", call.data)
    if list(request.metadata_field) != [_METADATA_FIELD]:
        given = ", ".join(name[:40] for name in request.metadata_field[:8]) or "none"
        raise InvalidError(f"metadata_field {given}: request {_METADATA_FIELD} only")
    served = call.worker.submission.find(request.model_spec.name, _version(call, request.model_spec))
    response = message_class("tensorflow.serving.GetModelMetadataResponse")(model_spec=model_spec(served.card))
    response.metadata[_METADATA_FIELD].Pack(signature_defs(served))
    return bytes(response.SerializeToString())


def _status(call: GrpcCall) -> bytes:
    call.authenticate()
    spec = parse_message("tensorflow.serving.GetModelStatusRequest", call.data).model_spec
    return bytes(model_status(call.worker.submission, spec.name, _version(call, spec)).SerializeToString())


def _unsupported(_: GrpcCall) -> NoReturn:
    raise ApiError(
        ErrorCode.UNIMPLEMENTED,
        "this worker supports only Predict, GetModelMetadata and GetModelStatus: call Predict; load models with "
        "`skylane cloud control`",
    )


def _version(call: GrpcCall, spec: Any) -> str | None:
    """Returns the name of the version that a ModelSpec selects by number or label; None if it has neither."""
    number = spec.version.value if spec.HasField("version") else None
    label = spec.version_label if spec.HasField("version_label") else None
    return find_version(call.worker.submission, spec.name, number, label)


SERVICES: Services = {
    "tensorflow.serving.PredictionService": {
        "Predict": Method(_predict),
        "GetModelMetadata": Method(_metadata),
        **dict.fromkeys(("Classify", "Regress", "MultiInference"), Method(_unsupported)),
    },
    "tensorflow.serving.ModelService": {
        "GetModelStatus": Method(_status),
        "HandleReloadConfigRequest": Method(_unsupported),
    },
}
