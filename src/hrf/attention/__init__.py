"""Linear-time softmax attention for every feature map, and engines that use the structure of some."""
