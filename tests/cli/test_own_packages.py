"""The program in a folder that has packages of the same names as its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import own_packages
from tests.cli.conftest import ROOT

ROOMS = ("cli", "config", "worker", "lessons")  # with which a program of ours begins
START = f"""
import importlib, sys
for room in {ROOMS}:
    for name in [name for name in sys.modules if name.split(".")[0] in ("pipeline", "models", "conf")]:
        del sys.modules[name]
    importlib.import_module(f"pipeline.{{room}}")
    import models.errors, conf, mine
    print(room, *models.__path__, *conf.__path__)
from hydra import compose, initialize_config_module
with initialize_config_module("conf", version_base="1.3"):
    print(compose("config", ["stage=eager", "preset=smoke"]).stage.target)
"""


def test_packages_of_the_users_own_are_not_taken_for_ours(tmp_path: Path) -> None:
    """Python looks in the folder first; our nets and configuration are taken all the same, and his other code."""
    for name in ("models", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (tmp_path / "mine.py").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", START]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = [f"{room} {ROOT / 'models'} {tmp_path / 'models'} {ROOT / 'conf'}" for room in ROOMS]
    assert done.stdout.splitlines() == [*ours, "pipeline.stages.eager"]


def test_an_incomplete_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_packages, "ROOT", tmp_path)
    with pytest.raises(ImportError, match="models: not there"):
        own_packages.claim()
