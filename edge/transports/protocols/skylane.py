"""Skylane's own gRPC service: the message bodies are the same as over MQTT."""

from edge.transports.channel import RpcReply
from edge.transports.messages import EncodedRequest
from shared.encoding.msgpack_reader import MessageError
from shared.encoding.protobuf_wire import PackedError, pack, unpack
from shared.messages.frame import FrameMessage, ResultMessage, pack_frame, unpack_result


class SkylaneAdapter:
    """Encodes frames for `skylane.v1.Worker.Answer`."""

    method = "/skylane.v1.Worker/Answer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See ProtocolAdapter."""
        return EncodedRequest(pack(pack_frame(message)))

    def read(self, reply: RpcReply) -> ResultMessage:
        """See ProtocolAdapter."""
        try:
            packed = unpack(reply.body)
        except PackedError as error:
            raise MessageError(str(error)) from error
        return unpack_result(packed)
