"""Turns a net into a graph that calls the project's kernels, for torch.compile to do all the rest.

The way of a net: `exported_net` (torch.export's functional graph), `passes` (batch norms folded, norms made NHWC,
layers given to kernels, which then do their neighbours' work), `calibrate` and `fp8_values` (which values are stored in
fp8), `choose` (each layer's fastest tile, measured), `lowering` (buffers and the operations of `custom_ops`; a
concatenation becomes one buffer). Inductor compiles the result, and what no kernel takes with it.
"""
