"""The command line: Hydra's config in, progress and errors out, exit codes."""
