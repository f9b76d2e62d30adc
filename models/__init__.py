"""The networks, the checkpoint loader and the training of the demo weights; nothing here knows of stages."""
