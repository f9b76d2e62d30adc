"""What the kernels share: layouts, epilogues, activations, bulk copies, and how a kernel describes itself."""
