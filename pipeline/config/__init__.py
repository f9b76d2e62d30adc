"""The request of a run, converted by msgspec and checked across keys; a wrong one raises RequestError of one line."""
