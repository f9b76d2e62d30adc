"""What a run is asked to do: Hydra's config, checked and turned into frozen dataclasses."""
