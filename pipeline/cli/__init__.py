"""The command line: Hydra's config in, progress and errors out, exit codes."""

from pipeline.config.own_packages import claim

claim()
