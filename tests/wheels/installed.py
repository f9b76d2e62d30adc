"""Installs both wheels and uses them, without a GPU: `python -m tests.wheels.installed dist`.

The kernels go into a virtual environment that has torch and what torch requires, nothing else. In another the ladder is
beside them, with what it requires and no extra, and is run from a folder that holds a user's own `pipeline.py`,
`models/` and `conf/`. Packages are not downloaded again: the environments link to those of this one.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import wheels

ROOT = Path(wheels.__file__).parent
PROBE = Path(__file__).with_name("kernels_alone.py")
LANES = 2  # commands at a time
WRONG = "raise SystemExit('a module of the user was imported by mistake')\n"
USERS_FILES = {
    "pipeline.py": WRONG,
    "conf/__init__.py": WRONG,
    "models/__init__.py": "",
    "models/nets.py": """
from torch import nn


class MyNet(nn.Sequential):
    def __init__(self, width: int = 8) -> None:
        super().__init__(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 1))
""",
    "my_stage.py": """
from unet_ladder.stages import Runner


def build(workload, *, gain: float = 1.0):
    return Runner(run=workload.model, description="the network itself")
""",
    "conf/stage/mine.yaml": """
name: mine
target: my_stage
summary: the network itself
gain: 1.0
tolerance: {relative_l2: 1.0e-2, flipped_share: 1.0e-3, reason: it is the network}
""",
}
LADDER = [  # each list in its order, beside the other
    ["-m unet_ladder preset=smoke stage=half hydra.run.dir=run", "-m unet_ladder.export run --stage half --to bundle"],
    [
        "-m unet_ladder preset=smoke stage=[half,mine] model=custom model.target=models.nets.MyNet hydra.run.dir=mine",
        "-m unet_ladder.report mine",
        "-m unet_ladder.compare mine mine",
        "-m unet_ladder.lessons --only strides --device cpu --out lessons",
        "-m unet_ladder.models.train --help",
    ],
]
TIMED = "-m unet_ladder.verify bundle --margin 400"  # beside nothing
MASKS = [
    ["-m unet_ladder.predict run images --stage half --out masks"],
    ["-m unet_ladder.predict bundle images --out bundles_masks"],
]
REFUSED = {
    "-m unet_ladder stage=half stage.dtype=fp12": "stage.dtype=fp12",
    "-m unet_ladder stage=mine stage.gain=loud": "stage.gain=loud",
    "-m unet_ladder stage=mime": "mine",
}
MADE = ["run/report.html", "mine/report.html", "masks/image.png", "bundles_masks/image.png", "lessons/lessons.html"]


def required(*names: str) -> set[str]:
    """Return the packages that are named, and all that they require here."""
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        package = wanted.pop().lower().replace("_", "-")
        if package in found:
            continue
        try:
            needs = distribution(package).requires or []
        except PackageNotFoundError:
            continue
        found.add(package)
        parsed = [Requirement(need) for need in needs]
        wanted += [need.name for need in parsed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def link(packages: Iterable[str], folder: Path) -> None:
    """Link the files of installed packages into another folder of packages."""
    home = Path(sysconfig.get_path("purelib"))
    for package in packages:
        for file in distribution(package).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(home / top)


def run(python: Path, words: str, folder: Path, code: int = 0) -> str:
    """Run a command in a folder, without this checkout on Python's path; return what it says.

    Raises:
        SystemExit: it ended with another exit code than `code`.
    """
    start = time.monotonic()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept["OMP_NUM_THREADS"] = "1"  # another command may run on the other core
    command = [str(python), *words.split()]
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=600, check=False)
    sys.stdout.write(f"{time.monotonic() - start:5.0f} s  python {words}\n")
    sys.stdout.flush()
    if done.returncode != code:
        raise SystemExit(f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stderr if code else done.stdout


def install(folder: Path, dist: Path, kinds: Iterable[str], packages: Iterable[str]) -> Path:
    """Install wheels, which ask the index for nothing, beside linked packages; return the environment's Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    link(required(*packages), Path(sysconfig.get_path("purelib", vars={"base": str(folder)})))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, *(str(file) for kind in kinds for file in dist.glob(f"{kind}-*.whl"))], check=True)
    return python


def main() -> None:
    """Check the kernels' wheel beside torch alone, and both."""
    dist = Path(sys.argv[1]).resolve()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(LANES) as pool:
        folder = Path(name)
        alone = install(folder / "kernels", dist, [wheels.KERNELS], ["torch"])
        (folder / "probe.py").write_text(wheels.rewritten(PROBE.read_text(encoding="utf-8")), encoding="utf-8")
        needs = [Requirement(need).name for need in project["dependencies"]]
        both = install(folder / "ladder", dist, [wheels.KERNELS, wheels.LADDER], needs)
        probed = pool.submit(run, alone, "probe.py", folder)
        use_the_ladder(both, folder / "user", pool)
        probed.result()


def use_the_ladder(python: Path, folder: Path, pool: ThreadPoolExecutor) -> None:
    """Run the ladder, its tools, and a bundle in a user's folder.

    Raises:
        SystemExit: a command failed, or left no result.
    """
    for name, text in USERS_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "images").mkdir()
    image = "from skimage import data, io; io.imsave('images/image.png', data.astronaut()[:128, :128])"
    subprocess.run([str(python), "-c", image], cwd=folder, check=True)

    def in_order(lines: list[str]) -> None:
        for words in lines:
            run(python, words, folder)

    def refused(words: str) -> None:
        line = run(python, words, folder, code=2)
        if REFUSED[words] not in line:
            raise SystemExit(f"{words} is refused in other words: {line}")

    list(pool.map(in_order, LADDER))
    in_order([TIMED])
    for results in (pool.map(in_order, MASKS), pool.map(refused, REFUSED)):
        list(results)
    help_text = run(python, f"-I {python.with_name('unet-ladder')} --help", folder)
    if "unet_ladder" not in help_text:
        raise SystemExit(f"the script's help names other modules:\n{help_text}")
    missing = [name for name in MADE if not (folder / name).exists()]
    if missing:
        raise SystemExit(f"not made: {', '.join(missing)}")


if __name__ == "__main__":
    main()
