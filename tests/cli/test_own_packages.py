"""The program in a folder that has packages of the same names as its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import own_packages
from tests.cli.conftest import ROOT

START = """
import sys
import {room}
import models.errors, conf
from hydra import compose, initialize_config_module
with initialize_config_module("conf", version_base="1.3"):
    print(compose("config", ["stage=eager", "preset=smoke"]).stage.target)
print(*models.__path__, *conf.__path__)
import mine
"""


@pytest.mark.parametrize("room", ["pipeline.cli.app", "pipeline.report.__main__"])
def test_packages_of_the_users_own_are_not_taken_for_ours(room: str, tmp_path: Path) -> None:
    """Python looks in the folder first; the program's nets and configuration are its own, and his other code is found."""
    for name in ("models", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (tmp_path / "mine.py").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", START.format(room=room)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["pipeline.stages.eager", f"{ROOT / 'models'} {ROOT / 'conf'}"]


def test_the_rooms_of_every_program_take_our_packages_first() -> None:
    """What a process begins with: the parent, the worker, the lessons, and the report with its configuration."""
    for room in ("cli", "config", "worker", "lessons"):
        assert "claim()" in (ROOT / "pipeline" / room / "__init__.py").read_text()


def test_an_incomplete_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_packages, "ROOT", tmp_path)
    with pytest.raises(ImportError, match="models: not there"):
        own_packages.claim()
