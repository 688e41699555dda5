"""TensorFlow Serving's gRPC services, answered by the worker."""

from collections.abc import Mapping
from typing import Any, NoReturn

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Call, ask
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall
from cloud.gateway.grpc.messages import parse
from cloud.gateway.grpc.service import Method
from cloud.gateway.tf_serving.grpc_messages import read_predict
from cloud.gateway.tf_serving.models import model_spec, signature_defs, version_statuses
from cloud.gateway.tf_serving.response import FORM_KEY, form_of, write_predict
from cloud.gateway.tf_serving.signatures import signature
from cloud.gateway.tf_serving.versions import find
from shared.encoding.protobuf import message_class

CODEC_KEY = "skylane-codec"  # Of `image_bytes` whose codec their first bytes do not tell: raw, lz4 or zstd.
MASK_CODEC_KEY = "skylane-mask-codec"  # Of a segmentation's `result_bytes`.

_DOOR = "tfs-grpc"
_METADATA_FIELD = "signature_def"


class PredictionService:
    """`tensorflow.serving.PredictionService`."""

    name = "tensorflow.serving.PredictionService"

    def __init__(self, parts: WorkerContext) -> None:
        self._parts = parts

    def methods(self) -> Mapping[str, Method]:
        """See grpc_service.Service."""
        refused = {name: Method(_unimplemented) for name in ("Classify", "Regress", "MultiInference")}
        return {"Predict": Method(self._predict), "GetModelMetadata": Method(self._metadata), **refused}

    def _predict(self, call: GrpcCall) -> bytes:
        frame = call.frame
        caller = call.caller(self._parts.callers, frame.id.vehicle if frame else None)
        request = read_predict(call.data)
        chosen = signature(request.signature, is_vehicle=frame is not None)
        chosen.check(request.inputs)
        form = form_of(call.text(FORM_KEY))
        door = self._parts.door
        largest = self._parts.settings.max_message_bytes
        asked = ask(
            door,
            Call(
                door=_DOOR,
                caller=caller,
                model=request.model,
                inputs=request.inputs,
                received_ns=call.received_ns,
                max_reply_bytes=largest,
                version=find(door, request.model, request.version, request.label),
                outputs=chosen.wanted(request.outputs),
                codec=call.text(CODEC_KEY),
                mask_codec=call.text(MASK_CODEC_KEY) or "png",
                budget_ms=call.budget_ms,
                frame=frame,
            ),
        )
        reply = call.reply(asked)
        return write_predict(reply.outputs, model_spec(reply.card, chosen.name), form, largest)

    def _metadata(self, call: GrpcCall) -> bytes:
        call.caller(self._parts.callers)
        request = parse("tensorflow.serving.GetModelMetadataRequest", call.data)
        if list(request.metadata_field) != [_METADATA_FIELD]:
            given = ", ".join(name[:40] for name in request.metadata_field[:8]) or "none"
            raise RefusedError(Kind.INVALID, f"metadata_field {given}: ask for {_METADATA_FIELD} alone")
        door = self._parts.door
        card = door.card(request.model_spec.name, _version(self._parts, request.model_spec))
        answer = message_class("tensorflow.serving.GetModelMetadataResponse")(model_spec=model_spec(card))
        answer.metadata[_METADATA_FIELD].Pack(signature_defs(card, door))
        told: bytes = answer.SerializeToString()
        return told


class ModelService:
    """`tensorflow.serving.ModelService`."""

    name = "tensorflow.serving.ModelService"

    def __init__(self, parts: WorkerContext) -> None:
        self._parts = parts

    def methods(self) -> Mapping[str, Method]:
        """See grpc_service.Service."""
        return {"GetModelStatus": Method(self._status), "HandleReloadConfigRequest": Method(_unimplemented)}

    def _status(self, call: GrpcCall) -> bytes:
        call.caller(self._parts.callers)
        spec = parse("tensorflow.serving.GetModelStatusRequest", call.data).model_spec
        answer = message_class("tensorflow.serving.GetModelStatusResponse")()
        for number in version_statuses(self._parts.door, spec.name, _version(self._parts, spec)):
            status = answer.model_version_status.add(version=number, state="AVAILABLE")
            status.status.SetInParent()
        told: bytes = answer.SerializeToString()
        return told


def _version(parts: WorkerContext, spec: Any) -> str | None:
    return find(
        parts.door,
        spec.name,
        spec.version.value if spec.HasField("version") else None,
        spec.version_label if spec.HasField("version_label") else None,
    )


def _unimplemented(_: GrpcCall) -> NoReturn:
    raise RefusedError(
        Kind.UNIMPLEMENTED,
        "this worker has Predict, GetModelMetadata and GetModelStatus alone: call Predict; models are loaded with "
        "`skylane cloud control`",
    )
