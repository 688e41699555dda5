"""Skylane's own gRPC service: the messages of MQTT, one call a frame."""

from edge.transports.channel import Returned
from edge.transports.transport import EncodedRequest
from shared.encoding.msgpack_reader import MessageError
from shared.encoding.protobuf_wire import PackedError, pack, unpack
from shared.messages.frame import FrameMessage, ResultMessage, pack_frame, unpack_result


class SkylaneAdapter:
    """`skylane.v1.Worker.Answer`."""

    method = "/skylane.v1.Worker/Answer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Dialect."""
        return EncodedRequest((pack(pack_frame(message)),))

    def read(self, returned: Returned) -> ResultMessage:
        """See Dialect."""
        try:
            packed = unpack(returned.body)
        except PackedError as error:
            raise MessageError(str(error)) from error
        return unpack_result(packed)
