"""Small experiments that teach, on the user's own device, why a program is fast or slow."""

from pipeline.config.own_packages import claim

claim()
