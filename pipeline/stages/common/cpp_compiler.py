"""The C++ compiler that links a package of AOTInductor: one that leaves the C++ library to the process.

A package holds code that uses locales (torch 2.11 parses a device's name by std::regex). With a libstdc++ of its own
beside the one that torch loaded, it calls through the other's tables: the process dies by SIGSEGV or std::bad_cast.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from torch._inductor.cpp_builder import get_cpp_compiler

NAMES = ("g++", "c++", "clang++")
LIBRARIES = (b"libstdc++.so", b"libc++.so")  # GNU's and LLVM's, as a file that needs one names it
PROBE_SECONDS = 60.0  # a second or two, unless the disk is far away
PROBE = '#include <iostream>\nextern "C" void probe() { std::cout << 1; }\n'


class PackageCompiler(NamedTuple):
    """What links a package.

    Attributes:
        used: the compiler's path or name.
        passed_over: the one that Inductor would take, where that links the C++ library statically; else empty.
    """

    used: str
    passed_over: str = ""

    @property
    def details(self) -> dict[str, object]:
        """The same as a record shows it: nothing where it is Inductor's own choice."""
        return {"cpp_compiler": self.used, "cpp_compiler_passed_over": self.passed_over} if self.passed_over else {}


def shares_library(compiler: str) -> bool | None:
    """Whether a library that this compiler makes leaves the C++ library shared; None where it makes none."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(PROBE, encoding="utf-8")
        command = [compiler, "-shared", "-fPIC", str(source), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return any(name in made.read_bytes() for name in LIBRARIES) if done.returncode == 0 else None


@functools.cache
def package_compiler() -> PackageCompiler:
    """Inductor's own choice, or the first compiler of the path that leaves the C++ library shared.

    Raises:
        RuntimeError: every compiler that is found links it statically.
    """
    chosen = get_cpp_compiler()
    if not sys.platform.startswith("linux") or shares_library(chosen) is not False:  # None: in Inductor's own words
        return PackageCompiler(chosen)
    found = [shutil.which(name, path=folder) for name in NAMES for folder in os.get_exec_path()]
    other = next((path for path in found if path is not None and shares_library(path)), None)
    if other is None:
        raise RuntimeError(
            f"{chosen} links the C++ library into a package, which then crashes beside torch's; "
            "set CXX to a compiler that links it dynamically"
        )
    return PackageCompiler(other, passed_over=chosen)
