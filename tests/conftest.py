"""What holds for every test: how torch and Triton run, how processes start, and what no test may leave behind."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

# Before anything imports torch. Tests share the cores with each other. Inductor compiles in the process itself, as its
# pool of compilers would import torch once more, and believes /proc/cpuinfo instead of compiling two programs to ask.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
for variable in ("TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_VEC_ISA_OK"):
    os.environ.setdefault(variable, "1")

SELDOM = 20_000  # objects more than before, after which the collector looks at the youngest
# What is imported stays, torch above all: walking it takes a tenth of an export's time.
gc.set_threshold(SELDOM, 20, 20)

import pytest  # noqa: E402

from tests import fork_server, terminal_signals  # noqa: E402

COMPILER = "tests/compiler/"


def pytest_configure(config: pytest.Config) -> None:
    """Where tests run in several processes, this one runs none: it spares itself torch, and starts their one server."""
    if config.getoption("dist", "no") != "no":
        fork_server.start()
        return
    fork_server.interpret_without_gpu()
    # It takes private names of these versions.
    if (version("torch")[:5], version("triton")[:4]) in {("2.12.", "3.7."), ("2.15.", "3.9.")}:
        from tests import quick_libraries

        quick_libraries.install()
    fork_server.install()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the compiler's files to one process, which exports each net of `tests.compiler.nets` once for all."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped, unused-ignore]

    class ByRoom(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return COMPILER if nodeid.startswith(COMPILER) else str(super()._split_scope(nodeid))

    return ByRoom(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_runtest_setup() -> None:
    """Forget what Dynamo compiled for earlier tests, or a stage here would be told to have compiled nothing."""
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        dynamo.clear_compilation_metrics()


def pytest_runtest_call() -> None:
    """Begin each test with the same random numbers of torch, whatever ran before it; its fixtures are made already."""
    import torch

    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)  # after `-m` has left tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold long tests, so that no core waits for one at the end; skip `gpu` without one."""
    long = {item.path for item in items if item.get_closest_marker("long") or item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


def pytest_collection_finish() -> None:
    """Spare the collector what stays for good."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """End the server that forks the project's processes."""
    fork_server.stop()


@pytest.fixture
def at_a_terminal() -> Iterator[None]:
    """Have a test's own process heed Ctrl-C and the end of its terminal, wherever the tests were started."""
    with terminal_signals.heeded():
        yield


@pytest.fixture(autouse=True)
def no_hydra_left() -> Iterator[None]:
    """Clear what Hydra keeps for the whole process, which a program that ends badly within a test leaves."""
    yield
    if hydra := sys.modules.get("hydra.core.global_hydra"):
        hydra.GlobalHydra.instance().clear()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves another default dtype, another switch of torch or another folder behind.

    It takes no other fixture: what `monkeypatch` changes must be undone before this one looks.
    """
    from tests.process_state import nothing_leaks

    with nothing_leaks():
        yield


@pytest.fixture(autouse=True)
def processes(no_leaks: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the project's own processes, except where the marker `fresh_process` asks for a new interpreter."""
    with fork_server.suspended() if request.node.get_closest_marker("fresh_process") else nullcontext():
        yield
