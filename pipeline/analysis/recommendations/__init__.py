"""What to try next, each with the figures that speak for it and the command that tries it."""
