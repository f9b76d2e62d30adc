"""The child process: one stage from its workload to its record."""

from pipeline.own_packages import claim

claim()
