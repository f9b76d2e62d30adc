"""What `resume=RUN` alone asks."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.resumed import job_of, resumed_words
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from tests.cli.conftest import Ask
from tests.fake_machine import run_record, stage_record, steady_pair

MEASURED = run_record([stage_record("eager", steady_pair(1.0))])


def test_resume_alone_asks_what_the_run_was_asked(tmp_path: Path) -> None:
    """But for where it was kept; whoever types more says it all. A sweep's words are those of its jobs."""
    typed = "-m preset=smoke 'stage=[a b]' hydra.run.dir=x resume=old gpu_busy=share"
    asked = replace(MEASURED, command=f"python -m pipeline {typed}")
    codec.save(asked, tmp_path / "run")
    codec.save(asked, tmp_path / "sweep" / "0")
    words = ["-m", "preset=smoke", "stage=[a b]"]
    assert resumed_words([f"resume={tmp_path}/run"]) == words
    assert resumed_words([f"resume={tmp_path}/sweep", "resume_despite=[code]"]) == words
    assert resumed_words([f"resume={tmp_path}/run", "seed=1"]) == []
    assert resumed_words(["seed=1"]) == []
    assert resumed_words(["resume=null"]) == []
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / codec.CLAIM).touch()
    for name, why in (("none", "no such file; name the folder"), ("killed", "ended, or still is, before its first")):
        with pytest.raises(RequestError, match=f"^resume={tmp_path}/{name}: .*{why}"):
            resumed_words([f"resume={tmp_path}/{name}"])
    assert job_of(tmp_path / "sweep", 0) == str(tmp_path / "sweep" / "0")
    assert job_of(tmp_path / "sweep", 1) is None


@pytest.mark.parametrize("more", [(), ("seed=1",), ("hydra.run.dir=new",), ("-m", "hydra.sweep.dir=new", "seed=1,2")])
def test_what_is_no_run_is_not_resumed(more: tuple[str, ...], tmp_path: Path, ask: Ask) -> None:
    """Whatever is asked beside it: one line before anything is made, where a sweep measured all anew."""
    (tmp_path / "notes").mkdir()
    done = ask(f"resume={tmp_path}/notes", *(word.replace("new", f"{tmp_path}/new") for word in more))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: resume={tmp_path}/notes: ")
    assert "kept" not in done.stderr
    assert sorted(tmp_path.iterdir()) == [tmp_path / "notes"]


def test_the_run_that_may_be_meant_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose folder's name is near, or else the newest; a sweep where one is asked for, its job where none is."""
    monkeypatch.chdir(tmp_path)
    for second, name in enumerate(("day1/10-00-00", "day1/12-00-00-sweep/0", "day2/11-00-00")):
        codec.save(MEASURED, Path("outputs", name))
        os.utime(Path("outputs", name, codec.FILE), (second, second))
    for typed, found in (
        (["resume=elsewhere"], "day2/11-00-00"),
        (["resume=outputs/day1/10-00-01", "seed=1"], "day1/10-00-00"),
        (["resume=outputs/day2", "seed=1"], "day2/11-00-00"),
        (["resume=outputs/day1/12-00-00-sweep", "seed=1"], "day1/12-00-00-sweep/0"),
        (["resume=outputs/day2/11-00-00", "seed=1,2", "-m"], "day1/12-00-00-sweep"),
    ):
        with pytest.raises(RequestError, match=f"; did you mean 'outputs/{found}'\\?$"):
            resumed_words(typed)
    assert resumed_words(["resume=outputs/day1/12-00-00-sweep", "seed=1,2", "--multirun"]) == []
    assert resumed_words(["resume=${oc.env:RUN}", "seed=1"]) == []
    assert resumed_words(["resume=elsewhere", "--cfg", "job"]) == []
    with pytest.raises(RequestError, match=r"^resume=elsewhere: no such folder; did you mean"):
        resumed_words(["resume=elsewhere", "-m"])
