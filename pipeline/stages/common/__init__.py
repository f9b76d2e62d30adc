"""Modules that several stages share."""
