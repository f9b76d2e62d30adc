"""Slim networks: fewer channels of the user's own network, distilled from it, under a gate; and shorter loops."""
