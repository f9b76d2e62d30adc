"""Passes of their own, apart from all timing, that collect what a stage does with its time and memory."""
