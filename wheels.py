"""The build backend: hatchling, on a copy of the tree in which each wheel's files lie in one package.

A checkout has `pipeline/`, `models/` and `conf/`. Installed, they lie in `unet_ladder`, beside no other name, and the
compiler and its kernels in `unet_kernels`, a wheel of its own:

    python -m pip wheel --no-deps . -w dist                            # unet_ladder
    python -m pip wheel --no-deps . -w dist -C wheel=unet_kernels

An editable install keeps the checkout's layout.
"""

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

# Hatchling's own hooks: an editable install and a source archive have the checkout's layout.
HOOKS = {
    "build_editable",
    "build_sdist",
    *(f"get_requires_for_build_{kind}" for kind in ("editable", "sdist", "wheel")),
}
ROOT = Path(__file__).resolve().parent
LADDER, KERNELS = "unet_ladder", "unet_kernels"
# From a name in the checkout to the one in a wheel; the first that fits.
MOVED = {
    "pipeline.compiler": KERNELS,
    "pipeline.kernels": f"{KERNELS}.kernels",
    "pipeline": LADDER,
    "models": f"{LADDER}.models",
    "conf": f"{LADDER}.conf",
}
NAME = r"(?:pipeline|models|conf)(?:\.\w+)*"
IMPORTS = [
    re.compile(rf"(?P<before>^[ ]*(?:from|import) )(?P<name>{NAME})(?=[\s,;])", re.MULTILINE),
    re.compile(rf"(?P<before>\bfrom )(?P<name>{NAME})(?= import\b)"),
]
# Names of modules in text. A target keeps its name (pipeline.stages.half, models.unet.UNet): records and configs
# hold it, and whoever imports one looks it up in the package that there is.
TEXTS = [
    re.compile(r"(?P<before>)\b(?P<name>pipeline(?:\.(?!stages\b)\w+)(?:\.\w+)*)"),
    re.compile(r"(?P<before>-m )(?P<name>pipeline|models)(?=\b)"),
    re.compile(r'(?P<before>")(?P<name>pipeline)(?="(?!:))'),
]


def renamed(name: str) -> str:
    """Return the name that a module of the checkout has in the wheels."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name


def rewritten(text: str) -> str:
    """Return a source file or a config of the checkout with the names that modules have in the wheels."""
    for pattern in (*IMPORTS, *TEXTS):
        text = pattern.sub(lambda found: found["before"] + renamed(found["name"]), text)
    return text


def place(file: Path) -> Path:
    """Return where a file of the checkout lies in the wheels, such as unet_ladder/report/html.py."""
    package = renamed(".".join(file.parent.parts))
    return Path(*package.split("."), file.name)


def stage(folder: Path, wheel: str) -> None:
    """Write the files of one wheel, and the pyproject.toml that hatchling builds it by, into an empty folder."""
    for top in ("pipeline", "models", "conf"):
        for path in sorted((ROOT / top).rglob("*")):
            target = place(path.relative_to(ROOT))
            if path.is_file() and path.suffix != ".pyc" and target.parts[0] == wheel:
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                if path.suffix in (".py", ".yaml", ".j2"):
                    (folder / target).write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
                else:
                    shutil.copyfile(path, folder / target)
    (folder / wheel / "py.typed").touch()
    for name in ("LICENSE", "README.md"):
        shutil.copyfile(ROOT / name, folder / name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (folder / "pyproject.toml").write_text(manifest(project, wheel), encoding="utf-8")


def manifest(project: Mapping[str, Any], wheel: str) -> str:
    """Return the pyproject.toml of one wheel, made of the `project` table of the checkout's."""
    kept = ["version", "readme", "license", "license-files", "requires-python", "keywords", "classifiers"]
    table = {"name": wheel.replace("_", "-"), **{key: project[key] for key in kept}}
    if wheel == KERNELS:
        table["description"] = "Compiles convolutional networks for Hopper GPUs with its own Triton kernels."
        table["dependencies"] = [need for need in project["dependencies"] if re.match(r"torch(?!\w)", need)]
    else:
        table["description"] = project["description"]
        table["dependencies"] = [*project["dependencies"], f"{KERNELS.replace('_', '-')}=={project['version']}"]
    tables: dict[str, Mapping[str, Any]] = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": table,
        "tool.hatch.build.targets.wheel": {"packages": [wheel]},
    }
    if wheel == LADDER:
        extras = project["optional-dependencies"]
        tables["project.optional-dependencies"] = {name: extras[name] for name in extras if name != "dev"}
        tables["project.scripts"] = {name: rewritten(start) for name, start in project["scripts"].items()}
    lines: list[str] = []
    for name, values in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


@contextmanager
def staged(wheel: str) -> Iterator[None]:
    """Within, the current folder holds the files of one wheel."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), wheel)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel that `config_settings["wheel"]` names, unet_ladder by default; PEP 517 calls it."""
    target = str(Path(wheel_directory).absolute())
    with staged((config_settings or {}).get("wheel", LADDER)):
        name: str = import_module("hatchling.build").build_wheel(target, None, metadata_directory)
    return name


def __getattr__(name: str) -> Any:
    if name in HOOKS:
        return getattr(import_module("hatchling.build"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
