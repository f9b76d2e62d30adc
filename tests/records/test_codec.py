"""What is written to results.json is what is read again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.records import codec
from pipeline.records.atomic_json import write_json
from pipeline.records.run_record import RunRecord, StageRecord, Tolerance
from pipeline.records.samples import Block, Pair, Sample

SAMPLE = Sample(calls=3, seconds=0.5, device_seconds=None, throttle_reasons=["power cap"])
PAIR = Pair("eager", "half", [Block("ABBA", (SAMPLE, SAMPLE), (SAMPLE, SAMPLE))])
STAGE = StageRecord("half", "fp16", "", Tolerance(0.01, 0.001, "because"), {"dtype": "auto"}, status="ok", pairs=[PAIR])
RUN = RunRecord("2026-01-01T00:00:00+00:00", "python -m pipeline", "cpu", {"data": {"batch_size": 2}}, stages=[STAGE])


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    """Nested records, tuples and None come back equal."""
    codec.save(RUN, tmp_path)
    assert codec.load(tmp_path) == RUN


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    """A record of another version isn't guessed at."""
    codec.save(replace(RUN, schema_version=99), tmp_path)
    with pytest.raises(codec.RecordError, match="schema version 99"):
        codec.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1}', json.dumps({"schema_version": 1, "odd": 2})])
def test_a_file_that_is_no_record_is_one_line(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with it, the file is named."""
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(codec.RecordError, match=r"results\.json"):
        codec.load(tmp_path)


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    """So that a misspelt path is seen at once."""
    with pytest.raises(codec.RecordError, match="no such file"):
        codec.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"status": "foo"}, "$.stages[0].status"),
        ({"build_seconds": "soon"}, "$.stages[0].build_seconds"),
        ({"failure": "out of memory!"}, "$.stages[0].failure"),
        ({"buildseconds": 1.0}, "$.stages[0].buildseconds"),
        ({"execution": {"precision": "fp17"}}, "$.stages[0].execution.precision"),
    ],
)
def test_a_value_that_the_schema_does_not_allow_is_refused_with_its_path(
    tmp_path: Path, change: dict[str, object], place: str
) -> None:
    """A word that is none of the known ones, text for a number, a field that nobody knows."""
    value = codec.to_json(RUN)
    value["stages"][0] |= change
    (tmp_path / "results.json").write_text(json.dumps(value))
    with pytest.raises(codec.RecordError) as refused:
        codec.load(tmp_path)
    assert place in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_number_survives(tmp_path: Path) -> None:
    """NaN and infinity, which an inaccurate stage leaves."""
    sample = replace(SAMPLE, seconds=float("inf"), device_seconds=float("nan"))
    pair = replace(PAIR, blocks=[Block("ABBA", (sample, sample), (sample, sample))])
    codec.save(replace(RUN, aa_pairs=[pair]), tmp_path)
    (kept,) = codec.load(tmp_path).aa_pairs
    assert kept.blocks[0].baseline[0].seconds == float("inf")
    assert kept.blocks[0].baseline[0].device_seconds != kept.blocks[0].baseline[0].device_seconds


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    """What can't be written is not half written."""
    path = tmp_path / "results.json"
    write_json({"a": 1}, path)
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert json.loads(path.read_text()) == {"a": 1}
