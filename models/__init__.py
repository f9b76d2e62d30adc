"""Networks, checkpoints, tensors read with torch, and the training of the demo weights."""
