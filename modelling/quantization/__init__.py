"""Post-training quantization of a model for OpenVINO.

Start with `quantization`.
"""
