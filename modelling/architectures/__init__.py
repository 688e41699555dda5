"""Network architectures in Keras: trunks (MobileNetV3, EfficientNet), heads, and the networks built from them.

Start with `networks`.
"""
