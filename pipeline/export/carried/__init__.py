"""Files that are copied into a bundle: they import nothing of this project."""
