"""The compiler's library in a bundle: a rewritten network's graph calls its kernels."""

from pathlib import Path

import pipeline.compiler
import pipeline.kernels

NAME = "unet_kernels"  # of the package in a bundle, as in the library's own wheel
NOTE = "# Copied from unet-ladder; Apache License 2.0.\n"
# Installed, the library has this name already, and nothing is renamed.
NAMES = {pipeline.kernels.__name__: f"{NAME}.kernels", pipeline.compiler.__name__: NAME}


def carry(folder: Path) -> int:
    """Copy the library into folder/unet_kernels; return the number of files."""
    target = folder / NAME
    for package, place in ((pipeline.compiler, target), (pipeline.kernels, target / "kernels")):
        home = Path(package.__path__[0])
        for path in home.rglob("*.py"):
            copy = place / path.relative_to(home)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(NOTE + renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return sum(1 for _ in target.rglob("*.py"))


def renamed(text: str) -> str:
    """Return a source with the names that the library's modules have in a bundle."""
    for ours, theirs in NAMES.items():
        text = text.replace(ours, theirs)
    return text
