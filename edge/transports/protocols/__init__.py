"""How a frame is encoded for each gRPC or HTTP protocol: Skylane's own, Open Inference, TensorFlow Serving."""
