"""Records in, strings out; `write.py` alone writes files."""
