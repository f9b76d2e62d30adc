"""Measurements that a build is made of: tiles, norms, scales of fp8, and the budget of what they may cost."""
