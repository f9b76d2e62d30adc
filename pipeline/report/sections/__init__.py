"""The sections of the report, one module each, in the order in which they explain the ladder."""
