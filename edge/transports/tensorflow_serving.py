"""TensorFlow Serving's protocols: each frame is a Predict call of the signature `packed`."""

import base64
import binascii
from functools import partial

from edge.transports import channel
from edge.transports.channel import RpcReply
from edge.transports.transport import EncodedRequest
from shared.compression import Buffer
from shared.messages.frame import FrameMessage, ResultMessage
from shared.messages.msgpack_reader import MessageError
from shared.messages.protobuf import ProtobufError, message_class, parse
from shared.messages.tensorflow_tensors import STRING

MAX_VALUES = 64  # JSON values in a reply, which has one string.

_SIGNATURE = "packed"


class TfServingGrpcAdapter:
    """Encodes frames for `tensorflow.serving.PredictionService.Predict`."""

    method = "/tensorflow.serving.PredictionService/Predict"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See ProtocolAdapter."""
        spec = {"name": message.model, "signature_name": _SIGNATURE}
        image = {"dtype": STRING, "tensor_shape": {"dim": [{"size": 1}]}, "string_val": [bytes(message.data)]}
        request = message_class("tensorflow.serving.PredictRequest")(model_spec=spec, inputs={channel.IMAGE: image})
        return EncodedRequest(request.SerializeToString(), ((channel.FRAME_KEY, channel.pack_metadata(message)),))

    def read(self, reply: RpcReply) -> ResultMessage:
        """See ProtocolAdapter."""
        return channel.read_mask(reply.metadata, partial(_result_of_message, reply.body))


class TfServingRestAdapter:
    """Encodes frames for `POST /v1/models/<model>:predict` in the row format; images and results are base64."""

    content_type = "application/json"

    def __init__(self, model: str) -> None:
        self.path = f"/v1/models/{model}:predict"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See ProtocolAdapter."""
        head = b'{"signature_name":"%s","instances":[{"b64":"' % _SIGNATURE.encode()
        body = b"".join((head, base64.b64encode(message.data), b'"}]}'))
        return EncodedRequest(body, ((channel.FRAME_HEADER, channel.pack_header(message)),))

    def read(self, reply: RpcReply) -> ResultMessage:
        """See ProtocolAdapter."""
        return channel.read_mask(reply.metadata, partial(_result_of_json, reply.body))


def _result_of_message(body: Buffer) -> Buffer | None:
    """Returns the result in a serialized PredictResponse, or None if it has no result."""
    try:
        outputs = parse(message_class("tensorflow.serving.PredictResponse"), body).outputs
    except ProtobufError as error:
        raise MessageError(f"no PredictResponse: {error}") from error
    strings = outputs[channel.RESULT].string_val if channel.RESULT in outputs else []
    return strings[0] if len(strings) == 1 else None


def _result_of_json(body: Buffer) -> Buffer | None:
    """Returns the result in a reply in the row format, or None if it has no result."""
    try:
        predictions = channel.parse_json(body, MAX_VALUES)["predictions"]
        return base64.b64decode(predictions[0]["b64"], validate=True) if predictions else None
    except (ValueError, TypeError, LookupError, binascii.Error) as error:
        raise MessageError(f"no reply to a predict call: {type(error).__name__} {error}"[:200]) from error
