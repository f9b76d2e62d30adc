"""The devices of this machine, and the one that a run takes."""
