"""Masks of users' images and volumes, by a recorded stage or by an exported bundle."""

from pipeline.config.own_packages import claim

claim()
