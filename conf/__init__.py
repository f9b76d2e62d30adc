"""Every knob, composed by Hydra; a package so that the console script finds it."""
