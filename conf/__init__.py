"""Every knob, composed by Hydra; and where the program's packages lie."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent  # holds conf/ and models/: the checkout, or the installed package
PACKAGE = __name__.rpartition(".")[0]  # the one package that holds all others if installed; empty in a checkout
