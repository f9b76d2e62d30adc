"""The table of the networks on which the kernels win little, from files that several jobs wrote."""

import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from tests.house import doc_tables, network_table
from tests.house.test_docs import another

MS = {"reduce-overhead": 2.8, "fused": 2.71, "fp8": 1.02}
OF_A_JOB = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "commit": "c" * 40, "code_sha256": "d", "failed": {}}
OWN = ("fused", "fp8")


def cold(ms: dict[str, float], *goals: float | None, **others: Any) -> dict[str, Any]:
    """What hard_nets records in a process with empty caches."""
    each = {"convolution": 0.6, "layout change": 0.25, "pool": 0.001}
    return OF_A_JOB | {
        "rounds_ms": {form: [9 * own, own, 0.9 * own] for form, own in ms.items()}, "relative_l2": {"fp8": 0.0123},
        "goals": dict(zip(OWN, goals or (None, None), strict=True)), "build_seconds": dict.fromkeys(ms, 51.7),
        "ran": {own: {"candidates_ms": {"Inductor": 3.5}} for own in OWN},
        "kinds_us": {form: {kind: 1e3 * share * ms[form] for kind, share in each.items()} for form in ms},
    } | others  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docs with what two jobs recorded: a network in full, one that torch.compile lacks, and one without goals."""
    warm = OF_A_JOB | {"ran": dict.fromkeys(OWN), "build_seconds": {"fused": 3.4, "fp8": 2.6}}
    without = {form: ms for form, ms in MS.items() if form != "reduce-overhead"}
    jobs = {
        "a": {"CycleGAN, cold": cold(MS | {"max-autotune": 2.75}, 0.6, 0.4), "CycleGAN, warm": warm},
        "b": {"DDPM, cold": cold(without, 0.8, 0.25, failed={"max-autotune": "Error: 2 of 3"}), "SDXL, cold": cold(MS)},
    }
    (tmp_path / "docs" / "h100" / "hard").mkdir(parents=True)
    for name, rows in jobs.items():
        (tmp_path / "docs" / "h100" / "hard" / f"{name}.json").write_text(json.dumps(rows))
    (tmp_path / "docs" / "hard-nets.md").write_text("# Against torch.compile\n<!-- hard -->\n<!-- /hard -->\n")
    monkeypatch.setattr(network_table, "ROOT", tmp_path)
    for module in (network_table, doc_tables):
        monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    return tmp_path / "docs"


def drawn(folder: Path) -> str:
    (folder / "hard-nets.md").write_text(network_table.drawn("docs/hard-nets.md"))
    return (folder / "hard-nets.md").read_text()


def test_files_of_several_jobs_make_one_table(folder: Path) -> None:
    """With where the time of each miss goes, and what failed."""
    page = drawn(folder)
    assert "One NVIDIA H100 80GB HBM3 for each network, torch 2.11.0, commit cccccccc." in page
    shares = "0.985 (goal 0.6: missed) | 0.371 (goal 0.4: reached)"
    assert f"| CycleGAN | H100 | 2.80 | 2.75 | 2.71 | 1.02 | {shares} | 0.012 | 51.7 / 3.4 | 51.7 / 2.6 |" in page
    assert "| SDXL | H100 | 2.80 | – | 2.71 | 1.02 | 0.968 | 0.364 | 0.012 | 51.7 / – | 51.7 / – |" in page
    spent = "convolution 60.0 %, layout change 25.0 %, no kernel 14.9 %."
    assert re.findall("^- .*", page, re.MULTILINE) == [
        f"- DDPM, H100, own kernels (fp8): 0.291 instead of 0.25. Of 1.02 ms: {spent}",
        "- DDPM, H100: max-autotune failed, `Error: 2 of 3`.",
        f"- CycleGAN, H100, own kernels (fp16): 0.985 instead of 0.6. Of 2.71 ms: {spent}",
    ]


def test_every_printed_figure_is_recomputed(folder: Path) -> None:
    page = drawn(folder)
    found = [*doc_tables.hard()]
    assert [statement for statement in found if not statement.agrees] == []
    (folder / "hard-nets.md").write_text(re.sub(r"(?<![\w.])\d", another, page))
    agreeing = [statement.what for statement in doc_tables.hard() if statement.agrees]
    assert [what for what in agreeing if not what.endswith(("has a line", "missed"))] == []
    (folder / "hard-nets.md").write_text(page.replace("reached", "missed").replace("- DDPM, H100, own", "- DDPM, own"))
    assert sum(not statement.agrees for statement in doc_tables.hard()) == 2


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"VNet, cold": cold(MS, commit="e")}, "records of 2 commits"),
        ({"SDXL, cold": cold(MS)}, "has SDXL, cold, too"),
        ({"VNet, cold": cold(MS, gpu="NVIDIA H200")}, "VNet, cold is of NVIDIA H200"),
    ],
)
def test_files_of_two_commits_or_cards_or_with_a_network_twice_are_refused(
    rows: dict[str, Any], says: str, folder: Path
) -> None:
    (folder / "h100" / "hard" / "c.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=says):
        network_table.drawn("docs/hard-nets.md")


def test_a_recording_takes_the_place_of_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it lacks named, its files of one commit, and links to what has moved."""
    seen = list[dict[str, Any]]()
    monkeypatch.setattr(network_table, "refuse_mixed", seen.append)
    new = {"commit": "n" * 40, "gpu": "NVIDIA H200"}
    run = {"environment": {"device_name": "NVIDIA H200", "commit": new["commit"]}, "stages": []}
    rows = {f"CycleGAN, {build}": cold(MS, **new) for build in ("cold", "warm")}
    layers = OF_A_JOB | {"commit": new["commit"]}
    steps = {"net/pix2pix": run, "hard/CycleGAN": rows, "kernels/classic": layers, "lessons/all": run}
    for step, record in steps.items():
        path = folder.parent / "records" / step / "1" / "results.json.xz"
        path.parent.mkdir(parents=True)
        path.write_bytes(lzma.compress(json.dumps(record).encode()))
    (path.parent / "lessons.md").write_text("# Lessons")
    (folder / "a.md").write_text("(h200/kernels.json), (h200/lessons_bits/lessons.md#a), (docs/lessons.md)")
    (folder / "h200" / "lessons_bits").mkdir(parents=True)
    (folder / "h200" / "kernels.json").touch()
    (folder / "h200" / "hard").mkdir()
    earlier = {"VNet, warm": OF_A_JOB | new}  # of the same commit, so it stays
    (folder / "h200" / "hard" / "VNet.json").write_text(json.dumps(earlier))
    missing = network_table.take(folder.parent / "records")
    assert {"missing (hard): SDXL", "missing (net): pix2pix 1: compile_graph, fused, fp8"} < {*missing}
    assert not {"missing (hard): CycleGAN", "missing (kernels): classic", "missing (lessons): all"} & {*missing}
    assert [*seen[0]] == [
        "hard/VNet/warm",
        "net/pix2pix/1",
        "hard/CycleGAN/cold",
        "hard/CycleGAN/warm",
        "kernels/classic/1",
        "lessons/all/1",
    ]
    assert (folder / "a.md").read_text() == "(h100/kernels.json), (h200/lessons/lessons.md#a), (docs/lessons.md)"
    assert json.loads((folder / "h100" / "kernels.json").read_text()) == layers
    assert {path.name for path in (folder / "h200").iterdir()} == {"hard", "lessons", "net"}
    assert [json.loads(path.read_text()) for path in sorted(folder.glob("*/hard/*"))] == [rows, earlier]
    assert "| CycleGAN | H200 |" in drawn(folder)
