"""Readers of what users give: images, labels, volumes and weight files, without torch."""
