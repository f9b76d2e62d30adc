"""Functions for notebooks: measure a network that lives there, read a run, export its winner, make masks.

Whatever measures or predicts is a process of its own, so that the notebook's threads, switches and GPU stay its own.
"""
