"""The name under which a profile shows what a layer of the net does."""

LAYER = "layer:"  # the layer's name follows
