"""Compare a bundle on this machine with the machine where it was measured: `python -m pipeline.verify bundle/`.

Exit codes: 0 everything agrees, 1 something differs, 2 a wrong request.
"""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.command_line import FILES_TOO, Parser, guarded, importing, show

with importing():
    from pipeline.devices.accelerators import cuda_gpus
    from pipeline.devices.host import cpu_name, driver_version, installed
    from pipeline.export.bundle import BundleFails, Said, ask, changed_files
    from pipeline.export.contract import PACKAGES, Contract, Measured, load_contract
    from pipeline.orchestrate.processes import Use, between, now, taken_share
    from pipeline.records import codec
    from pipeline.records.samples import Service
    from pipeline.report.formatting import clean
    from pipeline.stats.intervals import CROWDED

DIFFERS = 1
SECONDS = 3.0  # of timing
MARGIN_PERCENT = 25.0  # by which a call may take longer: clock rates and other programs differ
AHEAD_OF_TIME = ("aot_inductor", "own_kernels")  # forms that are compiled for one kind of GPU


@dataclass(frozen=True)
class Line:
    """One line of the comparison."""

    what: str  # is compared
    asked: str  # as text
    found: str
    same: bool  # they agree
    why: str = ""  # the likely cause if they don't
    passing: bool = False  # the cause is other programs, and may pass

    def text(self) -> str:
        """Return the line as it is printed."""
        if self.same:
            return f"ok       {self.what}: {self.found}"
        return f"differs  {self.what}: expected {self.asked}, found {self.found}{': ' + self.why if self.why else ''}"


def here(contract: Contract) -> Measured:
    """Return this machine's device of the contract's kind, its driver, and the versions of the loader's packages."""
    on_gpu = contract.measured.device == "cuda"
    name = next((gpu.name for gpu in cuda_gpus()), "no GPU") if on_gpu else cpu_name()
    driver = driver_version() if on_gpu else None
    return replace(contract.measured, device_name=name, driver=driver, packages=installed(PACKAGES[contract.kind]))


def machine_lines(contract: Contract, machine: Measured) -> Iterator[Line]:
    """Yield the lines for GPU or processor, driver and versions."""
    asked = contract.measured
    bound = "its code was compiled for that one" if contract.kind in AHEAD_OF_TIME else "its speed is another's"
    yield Line("device", asked.device_name, machine.device_name, asked.device_name == machine.device_name, bound)
    if asked.driver:
        same = asked.driver == machine.driver
        yield Line("driver", asked.driver, machine.driver or "none", same, "it compiles and schedules otherwise")
    for name in PACKAGES[contract.kind]:
        if name in asked.packages:
            found = machine.packages.get(name, "none")
            same = found == asked.packages[name]
            yield Line(name, asked.packages[name], found, same, "requirements.txt names the versions")


def answer_lines(contract: Contract, found: Said) -> Iterator[Line]:
    """Yield the lines for the golden answers, and for the masks if they were deterministic at the export."""
    allowed = contract.golden_limits
    said, asked = f"{found['relative_l2']:.2g} off fp32", f"at most {allowed.relative_l2:g} off fp32"
    points = contract.words.points
    if contract.task == "segmentation":
        said += f", {100 * found['flipped_share']:.3g} % of the {points} differ"
        asked += f", {100 * allowed.flipped_share:g} % of the {points}"
    yield Line("answers", asked, said, bool(found["right"]), "other kernels run here, or other weights")
    if contract.deterministic and contract.task == "segmentation":
        moved = int(found["masks_moved"])
        why = "another processor, GPU or library adds in another order"
        yield Line(
            "masks", "those that were exported", f"{moved} {points} differ" if moved else "the same", not moved, why
        )
    if contract.finite:
        there = found["finite"]
        said = "finite" if there else "NaN or infinity"
        yield Line("constant inputs", "finite answers", said, there, "another version of the library drops a constant")


def speed_line(contract: Contract, found: Said, margin: float, use: Use) -> Line | None:
    """Return the line for the time of a call; None if the run measured none."""
    asked = contract.measured.ms_per_call
    if asked is None:
        return None
    took = float(found["milliseconds"])
    copied = contract.kind == "onnx" and contract.measured.device == "cuda"
    said = f"{took:.4g} ms{' with the copies from and to the host' if copied else ''}"
    why, busy = cause(contract, use)
    compared = f"the median calls of the run and of {SECONDS:g} s here; {why}"
    limit = f"{asked:.4g} ms and at most {margin:g} % more"
    return Line("speed", limit, said, took <= asked * (1 + margin / 100), compared, passing=busy)


def cause(contract: Contract, use: Use) -> tuple[str, bool]:
    """Return the likely cause of a longer call, and whether it is other programs on the processors."""
    threads = contract.measured.threads
    share = None if threads is None else taken_share(use, threads)
    if share is None:
        return "a slower machine, one that is throttled, or a busy one", False
    others = f"other programs used {use.others / use.wall:.1f} of {os.cpu_count()} processors meanwhile"
    if share >= CROWDED:
        return f"{others}: run it again when idle", True
    return f"a slower machine, or one that is throttled, as {others}", False


def verify(
    folder: Path, margin: float, machine: Measured | None = None, loader: Callable[..., Said] | None = None
) -> list[Line]:
    """Return all lines; a bundle with changed files isn't loaded; raises ContractError."""
    contract = load_contract(folder)
    changed = changed_files(folder)
    why = "nothing is loaded; copy the bundle again"
    lines = [Line("files", "those that were exported", ", ".join(changed) or "the same", not changed, why)]
    lines += machine_lines(contract, machine or here(contract))
    if changed:
        return lines
    before = now(os.getpid())
    try:
        said = (loader or ask)(folder, "--check", "--time", str(SECONDS))
    except BundleFails as error:
        return [*lines, Line("answers", "logits of the golden batch", "none", same=False, why=clean(error))]
    lines += answer_lines(contract, said)
    if "service" in said:
        at_export = f" ({contract.service.told} at the export)" if contract.service else ""
        lines.append(Line("service", "", f"{codec.from_json(Service, said['service']).told}{at_export}", same=True))
    speed = speed_line(contract, said, margin, between(before, now(os.getpid())))
    return [*lines, speed] if speed else lines


def percent(word: str) -> float:
    """Parse a finite number ≥ 0; raises ArgumentTypeError."""
    if not 0 <= (found := float(word)) < math.inf:
        raise argparse.ArgumentTypeError(f"{word}: expected a number ≥ 0")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison, and if a line differs, but no file, the command that makes or verifies the bundle again."""
    return guarded(lambda: verified(arguments), refuses=FILES_TOO)


def verified(arguments: list[str] | None) -> int:
    """Return the exit code of `main`."""
    parser = Parser(prog="python -m pipeline.verify", description=__doc__)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="a folder that pipeline.export wrote")
    text = "how much longer a call may take, in percent (default %(default)g)"
    parser.add_argument("--margin", type=percent, default=MARGIN_PERCENT, metavar="PERCENT", help=text)
    asked = parser.parse_args(arguments)
    lines, rebuild = verify(asked.bundle, asked.margin), load_contract(asked.bundle).rebuild
    show("".join(f"{clean(line.text())}\n" for line in lines))
    wrong = [line for line in lines if not line.same]
    if not wrong:
        return 0
    if all(line.passing for line in wrong):
        show(f"when the machine is idle: python -m pipeline.verify {clean(shlex.quote(str(asked.bundle)))}\n")
    elif lines[0].same:  # of a changed bundle its line has the cure
        show(f"to make it for this machine, measure here, then: {clean(rebuild)}\n")
    return DIFFERS


if __name__ == "__main__":
    sys.exit(main())
