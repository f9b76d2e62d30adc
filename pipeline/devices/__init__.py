"""The accelerators of this machine: which there are, what they can do, what they tell of themselves."""
