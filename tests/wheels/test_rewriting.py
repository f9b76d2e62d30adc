"""The wheels' files by the names that they have there."""

import ast
import tomllib
from pathlib import Path

import pytest
import yaml

import wheels

ROOT = Path(wheels.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("from pipeline.stages.api import Runner\n", "from unet_ladder.stages.api import Runner\n"),
        ("    from models.unet import UNet\n", "    from unet_ladder.models.unet import UNet\n"),
        ("from pipeline import export\n", "from unet_ladder import export\n"),
        ("import pipeline.compiler.ops as ops\n", "import unet_kernels.ops as ops\n"),
        ("from pipeline.kernels.conv1x1 import OP\n", "from unet_kernels.kernels.conv1x1 import OP\n"),
        ("from conf import ROOT\n", "from unet_ladder.conf import ROOT\n"),
        ("`from pipeline import measure`", "`from unet_ladder import measure`"),
        ('undisturbed("pipeline.compare")', 'undisturbed("unet_ladder.compare")'),
        ('[sys.executable, "-m", "pipeline", *words]', '[sys.executable, "-m", "unet_ladder", *words]'),
        ("python -m pipeline.export RUN", "python -m unet_ladder.export RUN"),
        ("python -m pipeline resume=RUN", "python -m unet_ladder resume=RUN"),
        ("python -m models.train model=unet", "python -m unet_ladder.models.train model=unet"),
        ("_target_: pipeline.cli.sweep_callback.X", "_target_: unet_ladder.cli.sweep_callback.X"),
        # A target keeps its name, and so does what is no module.
        ("target: pipeline.stages.half", "target: pipeline.stages.half"),
        ("target: models.unet.UNet", "target: models.unet.UNet"),
        ('{"models": "models.", "pipeline": 1}', '{"models": "models.", "pipeline": 1}'),
        ("checkpoint: models/weights/small.safetensors", "checkpoint: models/weights/small.safetensors"),
        ("the pipeline's models", "the pipeline's models"),
    ],
)
def test_modules_have_the_names_of_the_wheels(text: str, rewritten: str) -> None:
    assert wheels.rewritten(text) == rewritten


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("pipeline/__main__.py", "unet_ladder/__main__.py"),
        ("pipeline/report/html.py", "unet_ladder/report/html.py"),
        ("pipeline/compiler/__init__.py", "unet_kernels/__init__.py"),
        ("pipeline/kernels/conv1x1.py", "unet_kernels/kernels/conv1x1.py"),
        ("models/weights/x.safetensors", "unet_ladder/models/weights/x.safetensors"),
        ("conf/stage/half.yaml", "unet_ladder/conf/stage/half.yaml"),
    ],
)
def test_each_file_has_one_place(file: str, place: str) -> None:
    assert wheels.place(Path(file)) == Path(place)


@pytest.mark.parametrize("wheel", [wheels.LADDER, wheels.KERNELS])
def test_a_wheel_imports_nothing_of_the_checkouts_names(wheel: str, tmp_path: Path) -> None:
    """And the kernels' nothing of the ladder's."""
    wheels.stage(tmp_path, wheel)
    allowed = {wheel, wheels.KERNELS}
    for path in (tmp_path / wheel).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            tops = {name.partition(".")[0] for name in names}
            assert not tops & ({"pipeline", "models", "conf", wheels.LADDER, wheels.KERNELS} - allowed), path
    manifest = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    assert manifest["project"]["version"] == PROJECT["version"]


def test_the_ladder_requires_the_kernels_of_its_version() -> None:
    """And starts by a script of its own; the kernels need torch alone, and a citation names the version."""
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == PROJECT["version"]
    both = (wheels.manifest(PROJECT, wheel) for wheel in (wheels.LADDER, wheels.KERNELS))
    ladder, kernels = (tomllib.loads(manifest)["project"] for manifest in both)
    assert f"unet-kernels=={PROJECT['version']}" in ladder["dependencies"]
    assert ladder["scripts"] == {"unet-ladder": "unet_ladder.__main__:main"}
    assert ladder["classifiers"] == kernels["classifiers"] == PROJECT["classifiers"]
    assert [need.partition(">")[0] for need in kernels["dependencies"]] == ["torch"]
