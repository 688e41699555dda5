"""Constants of the bare gRPC server and its client; the module imports no library."""

METHOD = "/floor.Road/Predict"
TOOK_BYTES = 8  # Bytes before the mask: nanoseconds of the function, little-endian.
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # A separate connection for each client.
)
