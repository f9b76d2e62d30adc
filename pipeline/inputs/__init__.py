"""Readers of what users give, without torch; what cannot be used raises an InputError of one line that names it."""
