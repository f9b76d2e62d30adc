"""Masks of users' images and volumes, by a recorded stage or by an exported bundle."""
