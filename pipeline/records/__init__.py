"""What a run leaves: frozen dataclasses, their JSON form, and how older records are read."""
