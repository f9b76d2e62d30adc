"""A quota of processor time, as a container's `--cpus` sets it, counts as so many processors."""

import os
import sys
from pathlib import Path

import pytest
import torch

from pipeline.config import load
from pipeline.config.load import check_threads, quota_warning
from pipeline.config.request_error import RequestError
from pipeline.devices import host
from pipeline.devices.host import cpu_quota
from pipeline.measure import torch_device

QUOTAS: dict[str, tuple[dict[str, str], str, float | None]] = {
    "version 2": ({"cpu.max": "200000 100000"}, "0::/", 2.0),
    "none, version 2": ({"cpu.max": "max 100000"}, "0::/", None),
    "a group within another": (
        {"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "900000 100000"}, "0::/a/b", 4.0,
    ),
    "of a group by the host's name": ({"cpu.max": "150000 100000"}, "0::/docker/0123", 1.5),
    "outside what is mounted": ({"cpu.max": "150000 100000", "other/cpu.max": "1 100000"}, "0::/../other", 1.5),
    "version 2 beside version 1": ({"unified/a/cpu.max": "300000 100000"}, "4:memory:/x\n0::/a", 3.0),
    "version 1": ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", 0.5),
    "version 1, with another": (
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "600000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        "3:cpu,cpuacct:/a", 6.0,
    ),
    "none, version 1": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", None),
    "of another kind": ({"memory/cpu.max": "1 100000"}, "4:memory:/", None),
    "torn": ({"cpu.max": "2"}, "nonsense", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUOTAS)
def test_a_quota_is_read_as_either_version_has_it(kind: str, tmp_path: Path) -> None:
    files, own, quota = QUOTAS[kind]
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert cpu_quota(root, tmp_path / "own") == quota


def test_a_system_without_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path / "neither") is None


@pytest.fixture
def of_64(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of 64 processors."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    return monkeypatch


@pytest.mark.parametrize(("quota", "most"), [(None, 64), (2.0, 2), (1.5, 2), (0.25, 1), (100.0, 64)])
def test_a_quota_leaves_those_it_keeps_busy(quota: float | None, most: int, of_64: pytest.MonkeyPatch) -> None:
    of_64.setattr(host, "cpu_quota", lambda: quota)
    assert (host.processors(), host.seen_processors()) == (most, 64)


def test_threads_beyond_a_quota_are_refused_with_its_figure(of_64: pytest.MonkeyPatch) -> None:
    """Where 64 threads waited for each other; a run within it says whose figure its threads are."""
    for place in (host, load):
        of_64.setattr(place, "cpu_quota", lambda: 1.5)
    found = "2 processors of 64, by its container's CPU quota of 1.5"
    with pytest.raises(RequestError, match=f"threads=64: this program may use {found}; expected at most 2, or null"):
        check_threads(64)
    check_threads(2)
    said = quota_warning()
    assert said.text == f"this program may use {found}, and takes as many threads"


def test_where_there_is_no_quota_none_is_told() -> None:
    assert cpu_quota() is not None or quota_warning() is None


def test_torch_takes_no_more_threads_than_a_quota_keeps_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    for most in (2, 64, 128):
        monkeypatch.setattr(torch_device, "processors", lambda most=most: most)
        torch_device.keep_to_quota()
    assert taken == [2]
