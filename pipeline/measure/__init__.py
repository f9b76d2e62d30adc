"""The instrument: how a worker times a stage, and what else it reads."""
