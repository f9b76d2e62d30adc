"""How the source itself is kept: its figures, its limits, and its reports before and after a change."""
