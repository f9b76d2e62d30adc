"""What a bundle is on another machine is said line by line, and the exit code says whether all is as asked."""

from dataclasses import replace
from pathlib import Path
from typing import Unpack

import pytest

from pipeline import verify
from pipeline.command_line import REFUSED
from pipeline.export import files
from pipeline.export.bundle import BundleFails, Said
from pipeline.export.contract import FILE, Contract, Measured, TensorRule
from pipeline.inputs.input_contract import InputContract
from pipeline.orchestrate.processes import Use
from pipeline.records.goals import Tolerance

Captured = pytest.CaptureFixture[str]
MEASURED = Measured(4.0, "cuda", "NVIDIA H200", "570.1", "13.0", None, {"torch": "2.11.0", "triton": "3.6.0"})
CONTRACT = Contract(
    "compile", "pipeline.stages.compile", "aot_inductor", "package.pt2",
    TensorRule("image", [1, 3, 8, 8], "float32"), TensorRule("logits", [1, 2, 8, 8], "float16"),
    InputContract(), Tolerance(1e-2, 1e-3, "fp16"), masks_judged=True, measured=MEASURED, weights_sha256="ab",
    command="python -m pipeline", rebuild="python -m pipeline.export RUN --to DIR", deterministic=True,
)  # fmt: skip
ANSWER: Said = {"relative_l2": 1e-3, "flipped_share": 1e-4, "right": True, "masks_moved": 0, "milliseconds": 4.9}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "package.pt2").write_bytes(b"code")
    files.write_contract(CONTRACT, tmp_path)
    return tmp_path


def different(bundle: Path, machine: Measured = MEASURED, **said: Unpack[Said]) -> dict[str, str]:
    answer: Said = {**ANSWER, **said}
    lines = verify.verify(bundle, 25.0, machine, lambda *_: answer)
    return {line.what: line.text() for line in lines if not line.same}


def test_where_all_is_as_asked_every_line_is_well(bundle: Path) -> None:
    service = {"load_seconds": 1.25, "host_bytes": 2**30, "reserved_bytes": 2**29, "device_bytes": 3 * 2**29}
    answer: Said = {**ANSWER, "service": service}
    lines = verify.verify(bundle, 25.0, MEASURED, lambda *_: answer)
    asked = ["files", "device", "driver", "torch", "triton", "answers", "masks", "service", "speed"]
    said = "ok       service: first answer after 1.25 s, 1.50 GiB"
    assert lines[-2].text() == said
    assert [line.what for line in lines] == asked
    assert all(line.same for line in lines)


@pytest.mark.parametrize(
    ("machine", "said", "what", "line"),
    [
        (replace(MEASURED, device_name="NVIDIA L4"), {}, "device", "asked NVIDIA H200, found NVIDIA L4: its code"),
        (replace(MEASURED, driver="580.2"), {}, "driver", "asked 570.1, found 580.2"),
        (replace(MEASURED, packages={"torch": "2.12.1", "triton": "3.6.0"}), {}, "torch", "asked 2.11.0, found 2.12.1"),
        (MEASURED, {"right": False, "relative_l2": 0.5}, "answers", "at most 0.01 off fp32, 0.1 % of the pixels"),
        (MEASURED, {"masks_moved": 7}, "masks", "7 pixels differ"),
        (MEASURED, {"milliseconds": 5.01}, "speed", "asked 4 ms and at most 25 % more, found 5.01 ms"),
    ],
)
def test_what_differs_is_said_of_both_sides(machine: Measured, said: Said, what: str, line: str, bundle: Path) -> None:
    found = different(bundle, machine, **said)
    assert list(found) == [what]
    assert line in found[what]


ON_CPU = replace(CONTRACT, measured=replace(MEASURED, device="cpu", device_name="a CPU", driver=None, threads=2))
SLOW: Said = {**ANSWER, "milliseconds": 36.0}


@pytest.mark.parametrize(
    ("others", "why", "last"),
    [
        (1.62, "other programs used 1.6 of 2 processors meanwhile: run it again when they rest", "pipeline.verify"),
        (0.04, "a slower machine, or one that is throttled, as other programs used 0.0 of 2", "pipeline.export"),
        (None, "a slower machine, one that is throttled, or a busy one", "pipeline.export"),
    ],
)
def test_a_slow_answer_says_what_it_was_compared_with_and_who_else_worked(
    others: float | None, why: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "package.pt2").write_bytes(b"code")
    files.write_contract(ON_CPU, tmp_path)
    used = [Use(0.0, 0.0, 0.0), Use(10.0, 9.0, 10 * (others or 0.0))]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(verify, "here", lambda _: replace(MEASURED, device_name="a CPU", driver=None))
    monkeypatch.setattr(verify, "now", lambda _: None if others is None else used.pop(0))
    monkeypatch.setattr(verify, "ask", lambda *_: SLOW)
    assert verify.main([str(tmp_path)]) == verify.DIFFERS
    *_, speed, then = capsys.readouterr().out.splitlines()
    assert speed.startswith("differs speed: asked 4 ms and at most 25 % more, found 36 ms: the median calls of the run")
    assert why in speed
    assert last in then


def test_masks_need_not_be_the_same_where_they_never_were(bundle: Path) -> None:
    """A stage whose bits differ from process to process is held to its tolerance alone."""
    files.write_contract(replace(CONTRACT, deterministic=False), bundle)
    assert different(bundle, masks_moved=7) == {}


@pytest.mark.parametrize(("changed", "said"), [(True, "found package.pt2"), (False, "no kernel image")])
def test_a_bundle_without_an_answer_is_a_line(changed: bool, said: str, bundle: Path) -> None:
    """Nothing is loaded of a bundle that was changed."""
    if changed:
        (bundle / "package.pt2").write_bytes(b"other code")

    def fails(*_: object) -> Said:
        assert not changed, "loaded"
        raise BundleFails("RuntimeError: no kernel image")

    (line,) = [line for line in verify.verify(bundle, 25.0, MEASURED, fails) if not line.same]
    assert said in line.text()


def test_the_program_ends_with_what_rebuilds(bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(verify, "ask", lambda *_: ANSWER)
    monkeypatch.setattr(verify, "here", lambda _: replace(MEASURED, driver=None))
    assert verify.main([str(bundle)]) == verify.DIFFERS
    assert capsys.readouterr().out.endswith("then: python -m pipeline.export RUN --to DIR\n")
    assert verify.main([str(bundle / "nowhere")]) == REFUSED
    assert FILE in capsys.readouterr().err
    (bundle / "package.pt2").write_bytes(b"other code")
    assert verify.main([str(bundle)]) == verify.DIFFERS
    assert capsys.readouterr().out.count("pipeline.export") == 0, "it is to be copied again"


@pytest.mark.parametrize("margin", ["nan", "inf", "-1", "5%"])
def test_a_margin_of_no_percentage_is_refused(bundle: Path, margin: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as left:
        verify.main([str(bundle), f"--margin={margin}"])
    assert left.value.code == 2
    assert "error: --margin: " in capsys.readouterr().err
