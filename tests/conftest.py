"""Triton runs in its interpreter in every test, on the CPU; it must know so before anything imports it."""

import os

os.environ["TRITON_INTERPRET"] = "1"
