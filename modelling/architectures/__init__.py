"""The networks: MobileNetV3 backbones, the LR-ASPP and DeepLabV3+ heads, and the blocks they share."""
