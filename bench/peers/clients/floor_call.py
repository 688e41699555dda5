"""What the floor's server and its client agree on; it needs nothing of Skylane's, nor any library."""

METHOD = "/floor.Road/Predict"
TOOK_BYTES = 8  # Before the mask: the nanoseconds that the function took, little-endian.
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # A connection of its own for each client.
)
