"""The winner at work: a bundle that runs without this project, and whether it does so on another machine."""

from pipeline.config.own_packages import claim

claim()
