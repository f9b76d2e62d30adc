"""One lesson a file; `pipeline.lessons.contents` puts them in order."""
