"""Statistics computed on reading: intervals, ranking, warnings about noise."""
