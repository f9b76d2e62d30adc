"""Every figure of a report, computed once from a run's records; no sentences."""
