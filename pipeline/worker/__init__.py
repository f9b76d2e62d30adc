"""The child process: one stage from its workload to its record."""
