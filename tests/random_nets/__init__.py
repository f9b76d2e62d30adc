"""Nets drawn at random, and what is asked of the compiler for each of them."""
