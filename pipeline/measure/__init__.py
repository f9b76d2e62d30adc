"""The instrument: clock, turns, statistics, memory, power; nothing here knows a stage by name."""
