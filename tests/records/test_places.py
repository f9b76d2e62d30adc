"""A record tells which file of a package is meant, and nothing of the machine's folders."""

import os
from pathlib import Path

import torch

from pipeline.records.places import without_places


def test_a_file_is_named_from_its_package_on() -> None:
    """As Dynamo names torch's own files; and as it quotes a user's, whose folder is on Python's path."""
    said = f"Dynamo marks `isinstance` in file `{torch.__file__}`"
    assert without_places(said) == "Dynamo marks `isinstance` in file `torch/__init__.py`"
    assert without_places(f"L['x'] at {Path.cwd() / 'nets.py'}:3") == "L['x'] at nets.py:3"


def test_the_deepest_folder_counts_and_the_root_is_left() -> None:
    """One place that Python imports from may lie within another; a name that only begins like one is another's."""
    roots = ["/opt/env", os.sep, "/opt/env/lib/site-packages"]
    assert without_places("/opt/env/lib/site-packages/torch/jit.py", roots) == "torch/jit.py"
    assert without_places("/opt/environment/a.py and /etc/b.py", roots) == "/opt/environment/a.py and /etc/b.py"
