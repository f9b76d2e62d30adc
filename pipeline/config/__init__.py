"""What is asked for: the composed config, checked and turned into plain dataclasses."""
