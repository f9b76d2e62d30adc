"""The record of a run and the request in it: frozen dataclasses and their JSON form."""
