"""Networks, checkpoints, tensors and training; what cannot be used raises an InputError of one line that names it."""
