"""The GPU kernels: one file each, with its reference in PyTorch, its launcher, and the tiles worth measuring."""
