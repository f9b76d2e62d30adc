"""Bundles: a recorded stage as a folder that runs without this project, and the check of such a folder."""
