"""A record tells which file of a package is meant, and nothing of the machine's folders."""

import os
from pathlib import Path

import pytest
import torch

from pipeline.records.masking import without_places


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


def test_a_path_is_cut_where_it_begins_alone() -> None:
    """A folder's name may stand amid another path; quotes, brackets and equals signs stand before one."""
    for said in ("/opt/app/foo.py", "../app/foo.py", "./app/foo.py", "my-/app/foo.py"):
        assert without_places(said, ["/app"]) == said
    assert (
        without_places("""at '/app/a.py', (/app/b.py) of path=/app/c.py""", ["/app"])
        == "at 'a.py', (b.py) of path=c.py"
    )
    assert without_places("/a+b/c.py /aab/c.py", ["/a+b"]) == "c.py /aab/c.py"


def test_a_working_folder_that_was_removed_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python imports from is cut off all the same, and a relative folder of it passed over."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert without_places(f"in {torch.__file__}") == "in torch/__init__.py"
    assert without_places("/app/a.py and lib/b.py", ["lib", "/app"]) == "a.py and lib/b.py"
