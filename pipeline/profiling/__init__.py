"""Passes besides all timing that collect how a stage uses its time and memory."""
