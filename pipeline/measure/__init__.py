"""Measuring in a worker: a stage's times, memory, energy and accuracy."""
