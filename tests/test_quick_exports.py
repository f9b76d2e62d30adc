"""What makes exports quick changes nothing of them, and leaves torch's operators as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests import quick_exports
from tests.quick_exports import copies, remembered


class Operator:
    """As much of an operator as an override changes."""

    def __init__(self) -> None:
        self.py_kernels: dict[str, object] = {"own": 1}
        self._dispatch_cache: dict[str, object] = {}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[Any, object]:
    """Torch's table of fakes, without any."""
    table: dict[Any, object] = {}
    monkeypatch.setattr(quick_exports, "fakes", table)
    return table


def test_an_operator_is_given_its_kernels_once_and_loses_them_each_time(fakes: dict[Any, object]) -> None:
    """As long as it is to do the same, and has the kernels that it had; one with a fake of torch's is left to torch."""
    made: list[Operator] = []

    @contextmanager
    def override(asked: dict[Operator, object]) -> Iterator[None]:
        before = {op: op.py_kernels.copy() for op in asked}
        for op, what in asked.items():
            made.append(op)
            op.py_kernels["given"] = what, len(op.py_kernels)
            fakes.setdefault(op, what)
        yield
        for op in asked:
            op.py_kernels = before[op]
            fakes.pop(op)

    op, torchs = Operator(), Operator()
    overridden = remembered(override)
    for what, count in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
        op._dispatch_cache["stale"] = what
        with overridden({op: what}):
            assert op.py_kernels == {"own": 1, "given": (what, 1)}
            assert fakes == {op: what}
            assert len(made) == count
        assert (op.py_kernels, fakes) == ({"own": 1}, {})
    op.py_kernels["other"] = 2
    with overridden({op: "b"}):
        assert op.py_kernels["given"] == ("b", 2)
    assert made == [op, op, op]
    for _ in range(2):
        fakes[torchs] = "torch's"
        with overridden({torchs: "a"}):
            assert fakes == {torchs: "torch's"}
    assert made[3:] == [torchs, torchs]


def test_a_registry_is_read_once_and_each_caller_may_add_to_his_own() -> None:
    read: list[int] = []

    def make(version: int) -> SimpleNamespace:
        read.append(version)
        return SimpleNamespace(functions={"aten::add": [version]})

    registry = copies(make)
    first = registry(18)
    first.functions["aten::add"].append(0)
    first.functions["mine"] = []
    assert registry(18).functions == {"aten::add": [18]}
    assert registry(19).functions == {"aten::add": [19]}
    assert read == [18, 19]
