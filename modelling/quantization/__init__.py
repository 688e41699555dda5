"""Post-training quantisation of a model for OpenVINO.

Start with `quantization`.
"""
