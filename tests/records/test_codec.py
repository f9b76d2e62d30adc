"""What is written to results.json is what is read again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.records import codec
from pipeline.records.run_record import RunRecord, StageRecord, Tolerance
from pipeline.records.samples import Block, Pair, Sample

SLICE = Sample(calls=3, seconds=0.5, device_seconds=None, throttle_reasons=["power cap"])
PAIR = Pair("eager", "half", [Block("ABBA", (SLICE, SLICE), (SLICE, SLICE))])
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
