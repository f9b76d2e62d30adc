"""The parent: which worker runs when, what is kept of it, and what happens when it fails."""
