"""Network architectures in Keras: MobileNetV3, EfficientNet, and their heads."""
