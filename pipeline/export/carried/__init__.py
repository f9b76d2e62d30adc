"""Files that a bundle carries as they are: they import nothing of this project."""
