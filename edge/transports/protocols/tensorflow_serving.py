"""TensorFlow Serving's protocols: a frame as a Predict call of the signature `packed`, over gRPC or REST."""

import base64
import binascii
from functools import partial

from edge.transports.channel import Returned
from edge.transports.frame_metadata import FRAME_HEADER, FRAME_KEY, IMAGE, RESULT, frame_beside, frame_header, mask_of
from edge.transports.transport import EncodedRequest
from shared.encoding.bounded_json import parse
from shared.encoding.bounded_protobuf import ProtobufError
from shared.encoding.bounded_protobuf import parse as parse_message
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import STRING
from shared.messages.frame import FrameMessage, ResultMessage

MAX_VALUES = 64  # Of an answer in JSON, which has one string.

_SIGNATURE = "packed"


class TfServingGrpcAdapter:
    """`tensorflow.serving.PredictionService.Predict`."""

    method = "/tensorflow.serving.PredictionService/Predict"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Dialect."""
        spec = {"name": message.model, "signature_name": _SIGNATURE}
        picture = {"dtype": STRING, "tensor_shape": {"dim": [{"size": 1}]}, "string_val": [bytes(message.data)]}
        request = message_class("tensorflow.serving.PredictRequest")(model_spec=spec, inputs={IMAGE: picture})
        return EncodedRequest((request.SerializeToString(),), ((FRAME_KEY, frame_beside(message)),))

    def read(self, returned: Returned) -> ResultMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_output, returned.body))


class TfServingRestAdapter:
    """`POST /v1/models/M:predict` in the row format, pictures and results in base64."""

    content_type = "application/json"

    def __init__(self, model: str) -> None:
        self.path = f"/v1/models/{model}:predict"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Dialect."""
        before = b'{"signature_name":"%s","instances":[{"b64":"' % _SIGNATURE.encode()
        body = b"".join((before, base64.b64encode(message.data), b'"}]}'))
        return EncodedRequest((body,), ((FRAME_HEADER, frame_header(message)),))

    def read(self, returned: Returned) -> ResultMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_prediction, returned.body))


def _output(body: Buffer) -> Buffer | None:
    """The one result of a PredictResponse; None where it has none."""
    try:
        outputs = parse_message(message_class("tensorflow.serving.PredictResponse"), body).outputs
    except ProtobufError as error:
        raise MessageError(f"no PredictResponse: {error}") from error
    strings = outputs[RESULT].string_val if RESULT in outputs else []
    return strings[0] if len(strings) == 1 else None


def _prediction(body: Buffer) -> Buffer | None:
    """The one result of an answer in the row format; None where it has none."""
    try:
        predictions = parse(body, MAX_VALUES, is_ascii=True)["predictions"]
        return base64.b64decode(predictions[0]["b64"], validate=True) if predictions else None
    except (ValueError, TypeError, LookupError, binascii.Error) as error:
        raise MessageError(f"no answer to a predict call: {type(error).__name__} {error}"[:200]) from error
