"""What a run hands over: artefacts that load in a fresh process."""
