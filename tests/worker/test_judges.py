"""A stage that changes what it is judged by is refused: its inputs, the net's layers, this program, the answers."""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.measure import accuracy, own_functions, sampling
from pipeline.measure.clock import TorchClock
from pipeline.measure.rotation import Rotation
from pipeline.records.error_line import first_line, typed_line
from pipeline.records.file_mark import mark_of
from pipeline.records.request import DataSpec, Job
from pipeline.stages.api import Workload
from pipeline.worker import guard, reference, workload
from pipeline.worker.failures import failure_of
from pipeline.worker.guard import RIGHT, Guard
from tests.worker.jobs import EAGER, job


@pytest.fixture
def work(tmp_path: Path) -> Workload:
    """A net of two layers, three inputs, and the reference's answers on disk."""
    (tmp_path / "logits").write_bytes(b"right")
    batches = [torch.rand(1, 3, 4, 4) for _ in range(3)]
    return Workload(nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU()), batches, batches[0].device, tmp_path)


def guarded(work: Workload) -> Guard:
    return Guard(work, Rotation(work.batches), 0, work.folder / "logits")


def rewrites_the_answers(work: Workload) -> None:
    """Its own answers in the reference's place, and the file's time as it was."""
    path = work.folder / "logits"
    before = path.stat()
    path.write_bytes(b"wrong")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Workload], object]] = {
    "the list of batches": lambda work: work.batches.append(work.batches[0]),
    "the list of batches holds": lambda work: work.batches.clear(),
    "given: the net itself is not": lambda work: work.model.register_forward_hook(lambda *_: None),
    "given: 1 is not": lambda work: setattr(work.model, "1", nn.GELU()),
    "given: 0 is not": lambda work: setattr(work.model[0], "forward", torch.relu),  # type: ignore[index]
    "wrote into the reference's answers: logits": rewrites_the_answers,
}


@pytest.mark.parametrize("said", CHANGES)
def test_it_is_named(said: str, work: Workload) -> None:
    """Each is a broken contract, by what was changed."""
    watch = guarded(work)
    assert watch.changes() is RIGHT
    CHANGES[said](work)
    found = watch.changes()
    assert found.failure == "broken contract"
    assert said in found.reason


@pytest.mark.parametrize("calls", [2, 7, 8, 100])
def test_neither_even_nor_odd_calls_are_the_only_ones_looked_at(calls: int, work: Workload) -> None:
    """So that a stage that is wrong every other time is found; a sample of one call stays one."""
    watch = guarded(work)
    watch.verified([torch.zeros(1, 2, 4, 4)] * 3)
    drawn = {watch.begin_sample(1, calls) for _ in range(64)}
    assert {count % 2 for count in drawn} == {0, 1}
    assert min(drawn) >= calls
    assert max(drawn) <= max(calls + 1, calls * 9 // 8)
    assert watch.begin_sample(1, 1) == 1


def own_hook() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    yield
    handle.remove()


class Through(torch.overrides.TorchFunctionMode):
    """Passes every call on."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """The call's own answer."""
        return function(*given, **(named or {}))


def own_mode() -> Iterator[None]:
    with Through():
        yield


def own_profile() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    yield
    sys.setprofile(before)


@pytest.mark.parametrize(
    ("change", "said"),
    [(own_hook, "hooks of every layer was 0, is 1"), (own_mode, "torch's modes was"), (own_profile, "tracing was")],
)
def test_what_all_calls_of_the_process_pass_through_is_named(
    change: Callable[[], Iterator[None]], said: str, work: Workload
) -> None:
    """A hook of every layer, a mode of torch, a tracer: each could answer in the place of what is called."""
    watch = guarded(work)
    for _ in change():
        found = watch.changes()
        assert found.failure == "broken contract"
        assert said in found.reason
    assert watch.changes() is RIGHT


def test_more_processors_and_another_priority_are_named(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer processors are a stage's own affair, as a runtime may bind its threads."""
    watch, own = guarded(work), os.sched_getaffinity(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {min(own)})
        assert watch.changes() is RIGHT
        patch.setattr(os, "sched_getaffinity", lambda _: own | {999})
        assert "processors beyond its own was [], is [999]" in watch.changes().reason
    monkeypatch.setattr(os, "getpriority", lambda *_: -20)
    assert "priority was" in watch.changes().reason


def test_a_working_folder_that_somebody_removes_accuses_no_stage(
    work: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes to a folder and removes it is named; it was an error of the system that named nothing."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    watch = guarded(work)
    (tmp_path / "first").rmdir()
    assert watch.changes() is RIGHT
    monkeypatch.chdir(tmp_path / "second")
    (tmp_path / "second").rmdir()
    assert watch.changes().reason.endswith(f"folder was {tmp_path / 'first'}, is {tmp_path / 'second'}")


def test_a_reference_that_somebody_removed_is_no_fault_of_the_stage(work: Workload) -> None:
    """The run computes it again."""
    watch = guarded(work)
    (work.folder / "logits").unlink()
    assert watch.changes() is RIGHT


def imitated(owner: object, name: str) -> Callable[..., object]:
    """Another function under the name and module of the one that it takes the place of."""
    honest = getattr(owner, name)

    def other(*given: object) -> object:
        return honest(*given)

    for part in ("__module__", "__qualname__"):
        setattr(other, part, getattr(honest, part, None) or "torch")
    return other


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (sampling, "time_and_keep"),
        (TorchClock, "now"),
        (accuracy, "check"),
        (torch, "equal"),
        (torch.Tensor, "cpu"),
        (resource, "getrusage"),
        (torch.cuda, "max_memory_allocated"),
    ],
)
def test_a_function_in_the_place_of_another_is_seen(
    owner: object, name: str, work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what it is, not by what it calls itself."""
    watch = guarded(work)
    monkeypatch.setattr(owner, name, imitated(owner, name))
    assert watch.changes().reason.startswith("replaced a part of what measures and checks it")
    assert watch.changes().reason.endswith(f".{name}")


def test_other_code_in_a_function_and_another_limit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function's code can be exchanged, and so can a constant that it compares with."""
    before = own_functions.own_functions()
    with monkeypatch.context() as patch:
        patch.setattr(guard, "ANSWER_MOVED", 1e9)
        assert own_functions.replaced(before) == "pipeline.worker.guard.ANSWER_MOVED"
    with monkeypatch.context() as patch:
        patch.setattr(reference.relative_l2, "__code__", (lambda output, reference: 0.0).__code__)
        assert own_functions.replaced(before) == "pipeline.worker.reference.relative_l2"
    assert own_functions.replaced(before) == ""


def test_the_clock_is_the_one_that_the_program_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is put back before anybody looks has told the time to nobody."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    assert TorchClock(torch.device("cpu")).now() > 0


def test_images_and_labels_are_none_of_a_stage_s_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stage is judged by can be read alone."""
    monkeypatch.setattr(workload, "net_of", lambda asked: nn.Identity())
    given = job(EAGER, tmp_path)
    small = Job(**{**vars(given), "data": DataSpec("samples", None, None, size=16, batch_size=1, batches=3)})
    loaded = workload.load(small, None)
    assert loaded.images is not None
    assert loaded.labels is not None
    for part in (loaded.images, loaded.labels):
        with pytest.raises(ValueError, match="read-only"):
            part[:] = 0


def test_a_mark_tells_one_writing_from_another(tmp_path: Path) -> None:
    """And a file from none."""
    path = tmp_path / "file"
    assert mark_of(path) is None
    path.write_bytes(b"1")
    before = mark_of(path)
    path.write_bytes(b"12")
    assert mark_of(path) != before


class UnspeakableError(RuntimeError):
    """An error that can't be told: its text ends the program, and its cause raises."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    @property
    def inner_exception(self) -> BaseException:
        """Never there."""
        raise RuntimeError("no cause")


def test_an_error_that_cannot_be_told_is_told_by_its_type() -> None:
    """Whatever its text, its cause and its type's name do, the line is one and short."""
    assert failure_of(UnspeakableError()) == ("error", "UnspeakableError")
    assert first_line(UnspeakableError()) == "UnspeakableError"
    named = typed_line(type("Two\nlines" + "x" * 9999, (Exception,), {})("text"))
    assert named.startswith("Two lines")
    assert len(named) <= 300
    assert "\n" not in named
