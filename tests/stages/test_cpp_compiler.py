"""A package's C++ compiler must leave the C++ library shared: two of them in one process crash it."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.stages.common import aot_package
from pipeline.stages.common.aot_package import PackageCompiler, package_compiler, shares_library

GXX = shutil.which("g++")
pytestmark = pytest.mark.skipif(GXX is None, reason="needs g++")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """No test hears what was found for another's compilers."""
    package_compiler.cache_clear()
    yield
    package_compiler.cache_clear()


@pytest.fixture
def static(tmp_path: Path) -> str:
    """A compiler that links libstdc++ into all that it makes, as some images' wrappers do."""
    wrapper = tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {GXX} -static-libstdc++ "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def test_what_inductor_takes_is_taken_where_it_leaves_the_library_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a record then has nothing to tell."""
    assert GXX is not None
    monkeypatch.setattr(aot_package, "get_cpp_compiler", lambda: GXX)
    assert package_compiler() == PackageCompiler(GXX)
    assert package_compiler().details == {}


def test_another_compiler_of_the_path_links_where_the_chosen_one_is_static(
    static: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper stands first in the path, too, and is passed over there."""
    assert GXX is not None
    monkeypatch.setattr(aot_package, "get_cpp_compiler", lambda: static)
    monkeypatch.setenv("PATH", f"{Path(static).parent}:{Path(GXX).parent}")
    assert package_compiler() == PackageCompiler(GXX, passed_over=static)
    assert package_compiler().details == {"cpp_compiler": GXX, "cpp_compiler_passed_over": static}


def test_with_static_ones_alone_the_reason_names_the_compiler(static: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a minute of compiling, and with what to set."""
    monkeypatch.setattr(aot_package, "get_cpp_compiler", lambda: static)
    monkeypatch.setattr("os.get_exec_path", lambda: [str(Path(static).parent)])  # the linker's own path stays
    with pytest.raises(RuntimeError, match=rf"^{re.escape(static)} links the C\+\+ library .*set CXX"):
        package_compiler()


@pytest.mark.parametrize("mode", [0o755, 0o644], ids=["ends with 1", "can't be run"])
def test_a_compiler_that_makes_nothing_is_no_choice(
    mode: int, static: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's own says in its own words what is wrong; another is passed by for the next."""
    assert GXX is not None
    broken = tmp_path / "broken" / "g++"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(mode)
    assert shares_library(str(broken)) is None
    monkeypatch.setattr(aot_package, "get_cpp_compiler", lambda: str(broken))
    assert package_compiler() == PackageCompiler(str(broken))
    package_compiler.cache_clear()
    monkeypatch.setattr(aot_package, "get_cpp_compiler", lambda: static)
    monkeypatch.setattr("os.get_exec_path", lambda: [str(broken.parent), str(Path(GXX).parent)])
    assert package_compiler() == PackageCompiler(GXX, passed_over=static)
