"""What several stages share; no stage itself."""
