"""The child process: one stage from its workload to its record."""

from pipeline.config.own_packages import claim

claim()
