"""What the protocols of the gateway share: authentication, inference, tensors, and each protocol independent of its encoding.

All functions that read a caller's data raise an `ApiError` if the caller must change something.
"""
