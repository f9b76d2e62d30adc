"""A request is composed once, unless something may say that it is a sweep."""

from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode

from tests.cli.conftest import Ask

REFUSED = ["stage=eager", "preset=cpu", "data.batch_size=0"]


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[RunMode]:
    """What each request was composed for."""
    found, load = [], ConfigLoaderImpl.load_configuration

    def noted(*given: Any, **named: Any) -> Any:
        found.append(named["run_mode"])
        return load(*given, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", noted)
    return found


def test_a_run_is_composed_once(modes: list[RunMode], ask: Ask, tmp_path: Path) -> None:
    """As that run."""
    assert ask(*REFUSED, f"hydra.run.dir={tmp_path}/run").returncode == 2
    assert modes == [RunMode.RUN]


@pytest.mark.parametrize("asked", ["-m", "hydra.mode=MULTIRUN"])
def test_a_sweep_is_one_however_it_is_asked_for(asked: str, modes: list[RunMode], ask: Ask, tmp_path: Path) -> None:
    """By the flag, or by a word that Hydra reads; each job is composed, too."""
    folder = tmp_path / "sweep"
    assert ask(*REFUSED, "seed=1,2", asked, f"hydra.sweep.dir={folder}").returncode == 1
    assert RunMode.MULTIRUN in modes
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"0", "1"}


def test_a_file_of_the_users_may_make_it_a_sweep(modes: list[RunMode], ask: Ask, tmp_path: Path) -> None:
    """In a folder that is looked through first."""
    folder, words = tmp_path / "sweep", ["stage=eager", "preset=mine", "data.batch_size=0"]
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset" / "mine.yaml").write_text("# @package _global_\npreset: mine\nhydra: {mode: MULTIRUN}\n")
    assert ask(*words, f"hydra.sweep.dir={folder}", "--config-dir", str(tmp_path)).returncode == 1
    assert (folder / "0").is_dir()
