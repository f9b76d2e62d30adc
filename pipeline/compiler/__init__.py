"""Turns a net into a program of the project's kernels: trace, passes, quantisation, autotuning, lowering, artefact.

What no kernel takes stays an ATen operation and runs as it is, so any net that torch can export still runs.
"""
