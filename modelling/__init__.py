"""Models: network architectures, evaluation, inspection, conversion and quantization.

Start with `recipes`, the models that Skylane builds, and `building`.
"""
