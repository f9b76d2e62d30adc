"""Parts that kernels share: layouts, epilogues, activations, bulk copies, and a kernel's description of itself."""
