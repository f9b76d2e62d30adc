"""Small experiments that teach, on the user's own device, why a program is fast or slow."""
