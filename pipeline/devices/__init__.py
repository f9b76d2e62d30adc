"""The devices of this machine: which there are, what they can do, and which of them a run takes."""
