"""The request of a run: Hydra's configuration, converted by msgspec and checked across keys."""
