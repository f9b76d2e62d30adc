"""Real records of every older schema are read, and their sentences become fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.records import codec, migrations, schema3_sentences
from pipeline.records.diagnostics import MemoryHolder, SearchCount
from pipeline.records.json_schema import text
from pipeline.records.run_record import SCHEMA_VERSION, RunRecord, StageRecord

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).resolve().parents[2]


def read(version: int) -> RunRecord:
    return codec.load(DATA / f"schema{version}.json")


def stage(version: int, name: str) -> StageRecord:
    return next(each for each in read(version).stages if each.name == name)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_record_of_each_version_is_read_and_written_in_this_one(version: int, tmp_path: Path) -> None:
    """What is written again is the same record, of this version."""
    old = json.loads((DATA / f"schema{version}.json").read_text())
    assert old["schema_version"] == version
    record = read(version)
    assert record.schema_version == SCHEMA_VERSION
    assert (record.batch_size, record.settings.data.image_size) == (
        old["config"]["data"]["batch_size"],
        old["config"]["data"]["size"],
    )
    assert record.settings.model.target == "models.unet.UNet"
    codec.save(record, tmp_path)
    assert codec.load(tmp_path) == record


def test_version_4_was_interleaved_with_eager_and_not_at_full_load() -> None:
    """Its second baseline was always autocast, and is a stage like the others."""
    assert json.loads((DATA / "schema4.json").read_text())["second_baseline"] == "amp"
    record = read(4)
    assert record.baseline == "eager"
    assert [each.name for each in record.stages] == ["eager", "amp"]
    assert not any(pair.sustained for each in record.stages for pair in each.pairs)
    assert [each.latency_steady for each in record.stages] == [None, None]


def test_version_1_has_no_diagnostics_and_keeps_its_samples() -> None:
    """Renamed fields hold the same figures."""
    old = json.loads((DATA / "schema1.json").read_text())
    record = read(1)
    assert [each.diagnostics for each in record.stages] == [None]
    first = old["stages"][0]["pairs"][0]["blocks"][0]["baseline"][0]
    assert record.stages[0].pairs[0].blocks[0].baseline[0].seconds == first["seconds"]
    assert len(record.aa_pairs) == 1


@pytest.mark.parametrize(
    ("version", "name", "precision", "layout", "provider", "captured", "fuses", "own"),
    [
        (2, "eager", "fp32", "NCHW", "PyTorch eager", False, False, 0),
        (2, "tf32", "tf32", "NCHW", "PyTorch eager", False, False, 0),
        (2, "compile", "fp16", "NHWC", "Inductor", False, True, 0),
        (2, "fp8", "fp8", "NHWC", "own kernels", True, True, 22),
        (3, "cuda_graph", "fp16", "NHWC", "PyTorch eager", True, False, 0),
    ],
)
def test_what_ran_is_read_from_its_sentence_once(
    version: int, name: str, precision: str, layout: str, provider: str, captured: bool, fuses: bool, own: int
) -> None:
    """Precision, layout, runtime, and who captures, fuses and has kernels of its own."""
    ran = stage(version, name).execution
    assert ran is not None
    found = (ran.precision, ran.layout, ran.provider, ran.captured, ran.fuses, ran.own_kernels)
    assert found == (precision, layout, provider, captured, fuses, own)


def test_the_layer_at_the_peak_and_the_holders_are_fields() -> None:
    """By the rule of the readings, four to a layer, which nothing else reads any more."""
    timeline = stage(3, "eager").diagnostics.timeline  # type: ignore[union-attr]
    assert timeline is not None
    assert timeline.peak_layer == "decoder.1.3"
    assert timeline.holders[0] == MemoryHolder(["encoder.0.5"], 512 * 2**20)
    assert (timeline.call, timeline.watched) == ("own", "layers")
    replayed = stage(3, "cuda_graph").diagnostics.timeline  # type: ignore[union-attr]
    assert replayed is not None
    assert (replayed.call, replayed.watched) == ("uncaptured", "layers")


def test_sources_searches_notes_and_compile_facts_are_fields() -> None:
    """None of them is a sentence."""
    compiled = stage(3, "compile")
    assert compiled.diagnostics is not None
    assert compiled.diagnostics.fusion is not None
    assert compiled.diagnostics.fusion.bytes_source == "Inductor"
    assert compiled.diagnostics.layers_source == "layer order"
    assert SearchCount("cuDNN", "problems", 19) in compiled.diagnostics.searches
    assert compiled.compile_facts is not None
    assert (compiled.compile_facts.graphs, compiled.compile_facts.breaks, compiled.compile_facts.recompiles) == (
        1,
        0,
        0,
    )
    assert "graph_breaks" not in compiled.details
    assert stage(3, "half").diagnostics.layers_source == "profile"  # type: ignore[union-attr]


def test_a_note_has_its_topic_and_its_code() -> None:
    """Of a real record, and of sentences that older programs wrote."""
    note = schema3_sentences.diagnostics({"notes": ["memory timeline: torch keeps no books of what it allocates"]}, [])
    assert note["notes"] == [
        {
            "topic": "memory timeline",
            "code": "no allocator statistics",
            "text": "torch keeps no books of what it allocates",
        }
    ]


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        ("ok", "", None),
        ("failed", "out of memory: CUDA out of memory. Tried to allocate 20 GiB", "out of memory"),
        ("failed", "died in build: killed by SIGKILL (out of memory?)", "killed"),
        ("failed", "died in build: exit code 1", "died"),
        ("failed", "RuntimeError: the compiler gave up", "error"),
        ("timeout", "build took longer than 8 s and was ended", "timeout"),
        ("inaccurate", "one class", "wrong answer"),
        ("skipped", "needs a GPU", "unsupported"),
    ],
)
def test_how_a_stage_failed_is_a_kind(status: str, reason: str, kind: str | None) -> None:
    """As it was decided by its words then."""
    assert schema3_sentences.failure(status, reason) == kind


def test_a_sample_that_was_kept_though_disturbed_says_so() -> None:
    """One retry more than the plan allows said it until schema 3."""
    document = json.loads((DATA / "schema2.json").read_text())
    sample: dict[str, Any] = document["stages"][0]["pairs"][0]["blocks"][0]["stage"][0]
    sample["redone"] = 4
    kept = codec.from_json(RunRecord, migrations.migrated(document)).stages[0].pairs[0].blocks[0].stage
    assert (kept[0].retries, kept[0].disturbed, kept[1].disturbed) == (3, True, False)


def test_stored_warnings_that_samples_show_are_dropped() -> None:
    """They are computed on reading, in today's words."""
    document = json.loads((DATA / "schema2.json").read_text())
    document["cautions"] = [{"name": name, "text": "old", "remedy": ""} for name in ("drift", "pairing failed")]
    document["stages"][0]["cautions"] = [
        {"name": name, "text": "old", "remedy": ""} for name in ("outliers", "export failed")
    ]
    record = codec.from_json(RunRecord, migrations.migrated(document))
    assert [part.code for part in record.warnings] == ["head-to-head failed"]
    assert [(part.code, part.text) for part in record.stages[0].warnings] == [("phase failed", "export: old")]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "h200").rglob("results.json")), ids=lambda path: path.parent.name
)
def test_every_recorded_run_is_read(path: Path) -> None:
    """With the precision of every stage that ran."""
    assert all(each.precision for each in codec.load(path).stages if each.status == "ok")


def test_the_committed_json_schema_is_current() -> None:
    """Made by `python -m pipeline.records.json_schema`."""
    assert (ROOT / "docs" / "results.schema.json").read_text(encoding="utf-8") == text()
