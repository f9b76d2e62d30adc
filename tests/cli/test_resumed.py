"""What `resume=RUN` alone asks."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.resumed import job_of, resumed_words
from pipeline.config.request_error import RequestError
from pipeline.records import codec
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
