"""The parent's part of counting bytes, with a script for ncu: what it is asked, and what becomes of its answer."""

import gzip
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.ncu import CACHE, READ, WRITTEN, find_ncu, launches, profiled_call, totals, with_counted_bytes
from pipeline.records.codec import from_json
from pipeline.records.diagnostics import Diagnostics, Note, Profile
from pipeline.records.request import SCRATCH, Job
from pipeline.records.run_record import StageRecord
from tests.orchestrate.fake_worker import Watcher, blank, config
from tests.profiling.traced import written
from tests.worker.jobs import EAGER, PLAN

HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
NOISE = ["==PROF== Connected to process 502 (python)", "==WARNING== Note: Running with unmodified GPU clocks.", HEAD]
CONV = "sm90_xmma_fprop_nhwc"
WORKSPACE = "void cask_plugin__5x_cudnn::xmma::init_device_workspace_kernel<int>(int)"
CLAMP = "void at::vectorized_elementwise_kernel<8, at::<unnamed>::launch_clamp(int)::[lambda() (instance 1)]>(int, T2)"
CLAMP_IN_TRACE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::launch_clamp(int)>(int)"
)
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version 2026.1"; exit 0; fi
echo "$@" >> "$FAKE/asked"
while [ "$1" != --log-file ]; do shift; done
echo "the child's last word"
if [ -e "$FAKE/sleeps" ]; then sleep 60; fi
cp "$FAKE/answer" "$2"
exit "$(cat "$FAKE/code")"
"""
BEFORE = Note("layers", "failed", "before")
PROFILE = Profile(2, 1e-3, 1.0, 1.0, [], None)
OK = StageRecord(EAGER, status="ok", profile=PROFILE, diagnostics=Diagnostics())


def lines(number: int, name: str, read: str, written: str, cache: str) -> list[str]:
    values = ((READ, read), (WRITTEN, written), (CACHE, cache))
    return [f'"{number}","502","{name}","{metric}","byte","{value}"' for metric, value in values]


def log(*kernels: list[str]) -> str:
    return "\n".join([*NOISE, *(line for kernel in kernels for line in kernel), "==PROF== Disconnected"])


TWO = log(lines(1, CLAMP, "200", "1,000", "50"), lines(0, CONV, "268,604,928", "10", "7"))


def test_kernels_are_read_in_their_order_and_their_sums_given_to_those_of_the_profile() -> None:
    first, second = launches(TWO)
    assert (first.name, first.moved) == (CONV, 268_604_938)
    assert second.counted == {READ: 200, WRITTEN: 1000, CACHE: 50}
    found = totals([first, second], [CONV, CLAMP_IN_TRACE], "ncu 1")
    assert (found.read_bytes, found.written_bytes, found.cache_bytes, found.kernels) == (268_605_128, 1010, 57, 2)
    assert found.by_kernel == {CONV: 268_604_938, CLAMP_IN_TRACE: 1200}
    assert found.moved_bytes == sum(found.by_kernel.values())
    assert found.alike == 2


@pytest.mark.parametrize(
    ("profiled", "known"),
    [
        ([CONV, "triton_poi_fused_0"], [CONV]), ([CLAMP_IN_TRACE, CONV], []),
        ([WORKSPACE, CONV, CLAMP_IN_TRACE], [CONV, CLAMP_IN_TRACE]), ([CONV, CONV], []), ([CONV], []),
        ([CONV, CLAMP_IN_TRACE, CONV], []), ([], []),
    ],
)  # fmt: skip
def test_a_kernel_gets_bytes_where_the_profile_has_it_at_the_same_places(profiled: list[str], known: list[str]) -> None:
    """In another order or number nothing is known but the sums; what readies a library's memory takes no place."""
    found = totals(launches(TWO), profiled, "ncu 1")
    assert list(found.by_kernel) == known
    assert (found.kernels, found.moved_bytes) == (2, 268_606_138)


def test_kernels_of_one_function_are_told_apart_by_their_templates() -> None:
    tiles = [f"void cutlass::Kernel<cutlass_tensorop_f16_{size}_nhwc>(T::Params)" for size in ("64x128", "128x128")]
    found = launches(log(lines(0, tiles[0], "1", "2", "9"), lines(1, tiles[0], "3", "4", "9")))
    assert totals(found, tiles, "ncu 1").by_kernel == {tiles[0]: 3}


def test_one_call_of_a_trace(tmp_path: Path) -> None:
    copy = written("gpu_memcpy", "Memcpy DtoD", 35, 5)
    call = [written("kernel", "a", 10, 5), written("kernel", "b", 20, 5), copy]
    later = [event | {"ts": event["ts"] + 100} for event in call]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": later + call}).encode()))
    assert profiled_call(path, 2) == ["a", "b"]
    assert profiled_call(path, 3) == []
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*call, later[1]]}).encode()))
    assert profiled_call(path, 1) == ["a", "b", "b"]
    assert profiled_call(path, 2) == []


COUNTED = "\n".join([*NOISE, *lines(0, CONV, "1,000", "500", "7")])


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an ncu that answers with the file `answer` and ends with what `code` holds."""
    tool = tmp_path / "ncu"
    tool.write_text(SCRIPT)
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    (tmp_path / "answer").write_text(COUNTED)
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def session(tmp_path: Path) -> RunContext:
    """A run on a GPU whose stage left the trace of two calls of one kernel."""
    plan = replace(PLAN, counters=True)
    asked = config(stages=[EAGER], plan=plan, device="cuda")
    events = [written("kernel", CONV, 10 * at, 5) for at in range(2)]
    (tmp_path / "run" / "eager").mkdir(parents=True)
    (tmp_path / "run" / "eager" / "trace.json.gz").write_bytes(
        gzip.compress(json.dumps({"traceEvents": events}).encode())
    )
    return RunContext(asked, tmp_path / "run", blank(config=asked), Watcher())


def test_what_was_counted_is_part_of_why(fake: Path, session: RunContext) -> None:
    found = with_counted_bytes(session, EAGER, replace(OK, diagnostics=Diagnostics(notes=[BEFORE])))
    assert found.diagnostics.notes == [BEFORE]
    counted = found.diagnostics.counted
    assert (counted.moved_bytes, counted.cache_bytes, counted.by_kernel) == (1500, 7, {CONV: 1500})
    assert counted.tool == "ncu 2026.1"
    assert (session.folder / "eager" / "counters.csv").read_text().splitlines()[1] == f"{CONV},1000,500,7"
    asked = (fake / "asked").read_text()
    assert "--clock-control none --cache-control none --profile-from-start off" in asked


def test_the_child_builds_from_what_the_first_process_left(fake: Path, session: RunContext) -> None:
    """Its own folder lies in the scratch, so that no artefact is written twice; the caches are the stage's."""
    with_counted_bytes(session, EAGER, OK)
    place = Path((fake / "asked").read_text().split()[-1])
    job = from_json(Job, json.loads(place.read_text()))
    assert (job.role, job.earlier) == ("counted", str(session.folder / "eager" / SCRATCH))
    assert Path(job.folder).is_relative_to(session.folder / "eager" / SCRATCH)


def test_who_may_not_count_is_asked_once(fake: Path, session: RunContext) -> None:
    (fake / "answer").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access")
    (fake / "code").write_text("1")
    notes = [with_counted_bytes(session, EAGER, OK).diagnostics.notes for _ in range(2)]
    assert notes[0] == notes[1]
    assert "administrators" in notes[0][0].text
    assert len((fake / "asked").read_text().splitlines()) == 1


def cut_off(fake: Path) -> None:
    trace = fake / "run" / "eager" / "trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:-8])


def answering(text: str) -> Callable[[Path], object]:
    return lambda fake: (fake / "answer").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (answering(COUNTED.replace("1,000", "n/a")), "has a line that can't be read"),
        (answering(f"stray\n{COUNTED}"), "has a line that can't be read"),
        (answering("\n".join(NOISE)), "ncu saw no kernel"),
        (answering(log(lines(0, CONV, "1", "2", "3")[:2])), "ncu gave no bytes for sm90"),
        (lambda fake: (fake / "code").write_text("3"), "ncu ended with exit code 3: the child's last word"),
        (lambda fake: (fake / "sleeps").touch(), "counting took longer than 1 s and was ended"),
        (cut_off, "the stage's trace can't be read (EOFError)"),
    ],
)
def test_whatever_fails_is_a_note(fake: Path, session: RunContext, spoil: Callable[[Path], object], said: str) -> None:
    spoil(fake)
    if (fake / "sleeps").exists():
        session.config = replace(session.config, plan=replace(session.config.plan, counters_limit_seconds=1.0))
    found = with_counted_bytes(session, EAGER, OK)
    assert (found.status, found.diagnostics.counted) == ("ok", None)
    (note,) = found.diagnostics.notes
    assert (note.topic, note.code) == ("hardware counters", "not read")
    assert said in note.text


@pytest.mark.parametrize(
    ("of_run", "of_stage"),
    [
        ({}, {"status": "inaccurate"}),
        ({}, {"profile": None}),
        ({}, {"diagnostics": None}),
        ({"device": "cpu"}, {}),
        ({"plan": replace(PLAN, counters=False)}, {}),
    ],
)
def test_it_is_not_counted(fake: Path, session: RunContext, of_run: dict[str, Any], of_stage: dict[str, Any]) -> None:
    session.config, record = replace(session.config, **of_run), replace(OK, **of_stage)
    assert with_counted_bytes(session, EAGER, record) is record
    assert not (fake / "asked").exists()


def test_a_toolkits_ncu_is_found_off_the_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ncu").touch()
    assert find_ncu({"CUDA_HOME": str(tmp_path), "PATH": ""}) != str(tmp_path / "bin" / "ncu")
    (tmp_path / "bin" / "ncu").chmod(0o755)
    assert find_ncu({"CUDA_HOME": str(tmp_path), "PATH": ""}) == str(tmp_path / "bin" / "ncu")
