"""A record survives results.json, and malformed files are refused in one line."""

import errno
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import first_line, typed_line
from pipeline.records import codec
from pipeline.records.disk import data_digest, write_json, write_text
from pipeline.records.goals import Tolerance
from pipeline.records.masking import masked
from pipeline.records.run_record import RunRecord, RunWarning, StageRecord
from pipeline.records.samples import Accuracy, Block, Energy, Memory, Pair, Sample, WarmUp
from tests.fake_machine import ACCURACY
from tests.house.json_schema import text
from tests.made_up_request import ASKED, changed, spec

SAMPLE = Sample(calls=3, seconds=0.5, device_seconds=None, throttle_reasons=["power cap"])
PAIR = Pair("eager", "half", [Block("ABBA", (SAMPLE, SAMPLE), (SAMPLE, SAMPLE))])
STAGE = StageRecord(spec("half", options={"dtype": "auto"}), status="ok", pairs=[PAIR])
RUN = RunRecord("2026-01-01T00:00:00+00:00", "python -m pipeline", ASKED, stages=[STAGE])


def test_a_library_s_own_texts_and_numbers_are_written_as_python_s(tmp_path: Path) -> None:
    """A version is a text of torch's own class, and msgspec knows str alone."""
    version = type("Version", (str,), {})("2.12.1+cu130")
    values = {"text": version, "count": np.int64(5), "share": np.float32(0.5), "is": np.bool_(True), "none": np.nan}
    write_json(values, path := tmp_path / "values.json")
    wanted = {"text": "2.12.1+cu130", "count": 5, "share": 0.5, "is": True, "none": None}
    assert json.loads(path.read_text()) == wanted


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    """A stage's name stands beside its status."""
    codec.save(RUN, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["stages"][0]["name"] == "half"
    assert codec.load(tmp_path) == RUN


def test_a_run_that_was_killed_before_its_first_record_is_told_from_a_misspelt_path(tmp_path: Path) -> None:
    with pytest.raises(codec.RecordError, match="no such file"):
        codec.load(tmp_path)
    (tmp_path / codec.CLAIM).touch()
    with pytest.raises(codec.RecordError, match="or ended before its first one; nothing can be taken over:"):
        codec.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "foo"},
        {"build_seconds": "soon"},
        {"build_seconds": -1.0},
        {"build_seconds": math.nan},
        {"failure": "out of memory!"},
        {"buildseconds": 1.0},
        {"latencies": [0.1, 0.0]},
        {"memory": codec.to_json(Memory(None, None, None, None, 1, -5))},
        {"energy": codec.to_json(Energy(-1.0, 1.0, 1, 1.0))},
        {"execution": {"precision": "fp17"}},
    ],
    ids=str,
)
def test_a_value_against_the_schema_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    value = codec.to_json(RUN)
    value["stages"][0] |= change
    (tmp_path / "results.json").write_text(json.dumps(value))
    with pytest.raises(codec.RecordError, match=r"\$\.stages\[0\]\." + next(iter(change))) as refused:
        codec.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_what_is_no_number_is_null_on_disk_and_nan_again(tmp_path: Path) -> None:
    figures = replace(ACCURACY, relative_l2=math.inf)
    wrong = replace(STAGE, status="inaccurate", accuracy=figures, details={"error": math.nan})
    path = codec.save(replace(RUN, stages=[wrong], drift=math.nan), tmp_path)
    json.loads(path.read_text(), parse_constant=pytest.fail)
    (stage,) = codec.load(tmp_path).stages
    assert math.isnan(stage.accuracy.relative_l2)
    assert stage.details == {"error": None}


def test_a_file_s_name_that_is_no_text_is_kept_as_its_escape(tmp_path: Path) -> None:
    """Python keeps such a byte as a lone surrogate, which JSON readers refuse; 😀 stays."""
    name = os.fsdecode(b"\xff.png")
    codec.save(replace(RUN, stages=[replace(STAGE, details={"image": f"{name} 😀", "nan": math.nan})]), tmp_path)
    (stage,) = codec.load(tmp_path).stages
    assert stage.details == {"image": "\\udcff.png 😀", "nan": None}
    write_text(f"{name} 😀", tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "\\udcff.png 😀"
    (tmp_path / name).write_bytes(b"")
    assert data_digest([str(tmp_path)])


@pytest.mark.parametrize(
    "wrong",
    [{"calls": 0}, {"calls": -3}, {"seconds": 0.0}, {"seconds": -1.0}, {"seconds": 5e-324}, {"seconds": math.nan},
     {"device_seconds": -1.0}],
    ids=str,
)  # fmt: skip
def test_a_sample_that_no_clock_gives_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    sample = replace(SAMPLE, **wrong)
    codec.save(
        replace(RUN, aa_pairs=[replace(PAIR, blocks=[Block("ABBA", (SAMPLE, sample), (SAMPLE,) * 2)])]), tmp_path
    )
    with pytest.raises(codec.RecordError, match=r"aa_pairs\[0\].blocks\[0\]"):
        codec.load(tmp_path)


@pytest.mark.parametrize("names", [["a", "a"], ["../../x"], [""], ["a\n\u202eb"], ["/etc"], [".hidden"]])
def test_names_that_no_folder_of_a_stage_has_are_refused(names: list[str], tmp_path: Path) -> None:
    codec.save(replace(RUN, stages=[changed(STAGE, name=name) for name in names]), tmp_path)
    with pytest.raises(codec.RecordError, match="can't be a stage's name, or is that of two") as refused:
        codec.load(tmp_path)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)],
    ids=["pipe", "folder", "device", "loop"],
)
def test_what_is_no_regular_file_is_never_read(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "results.json")
    with pytest.raises(codec.RecordError, match=r"results\.json: (not a regular file|Too many levels)"):
        codec.load(tmp_path)


def test_a_file_larger_than_any_record_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "results.json").open("wb") as file:
        file.truncate(codec.MOST_BYTES + 1)
    with pytest.raises(codec.RecordError, match="is more than any record has"):
        codec.load(tmp_path)


@pytest.mark.parametrize("version", [99, "7", True, None, 7.0])
def test_another_schema_is_refused_by_its_version(version: object, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"schema_version": version}))
    with pytest.raises(codec.RecordError, match=re.escape(f"schema version {version!r}, this program reads 1;")):
        codec.load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema_version": 1}',
        '{"schema_version": 1, "odd": 2}',
        "[" * 1_000_000,
        '{"schema_version": 1, "config": ' + '{"a": ' * 100_000 + "1" + "}" * 100_001,
        '{"schema_version": 1, "config": ' + "[" * 800 + "]" * 800 + "}",
        '{"schema_version": [5]}',
        '{"schema_version": 1, "stages": [{"status": {}}], "config": {}}',
        "\u0000",
        "9" * 10_000,
    ],
    ids=lambda text: text[:30],
)
def test_a_file_that_is_no_record_is_one_short_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(codec.RecordError, match=r"results\.json") as refused:
        codec.load(tmp_path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_an_error_is_told_in_one_short_line() -> None:

    class Unspeakable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError

    assert first_line(RuntimeError("x" * 5_000_000)) == "x" * 299 + "…"
    assert first_line(Unspeakable()) == "Unspeakable"
    assert typed_line(RuntimeError("\n\n  said\nmore")) == "RuntimeError: said"


def test_a_type_is_told_once_and_of_torchscript_s_traceback_the_error() -> None:
    """As torch.onnx gives an error for a heading, and one of the same type for its cause."""
    error = RuntimeError("Failed to convert. Next steps:\n- Report it")
    error.__cause__ = RuntimeError("no such operation")
    assert typed_line(error) == "RuntimeError: no such operation"
    error.__cause__ = ValueError("no such operation")
    assert typed_line(error) == "RuntimeError: ValueError: no such operation"
    said = "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent call "
    said += 'last):\n  File "code/__torch__/n.py", line 9, in forward\n    y = torch.relu(x)\n        ~~~ <--- HERE\n'
    assert typed_line(RuntimeError(f"{said}RuntimeError: too large\nTry less\n")) == "RuntimeError: too large"
    assert first_line(RuntimeError(f"{said}too large\n")) == "too large"
    assert first_line(RuntimeError(said.splitlines()[0])) == said.splitlines()[0]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_json({"a": 1}, path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json({"a": 2}, path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_committed_json_schema_is_current() -> None:
    committed = Path(__file__).parents[2] / "docs" / "results.schema.json"
    assert committed.read_text(encoding="utf-8") == text()


FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FINITE = st.floats(0, 1e9)
TIMES = st.floats(1e-12, 1e6)
SAMPLES = st.builds(Sample, st.integers(1, 10**6), TIMES, st.none() | TIMES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", [Block, Accuracy, Memory, Energy, WarmUp, Tolerance, RunWarning])
def test_what_is_written_is_read_again(kind: type[Any]) -> None:

    @FEW
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        st.register_type_strategy(float, FINITE)
        st.register_type_strategy(int, st.integers(0))
        st.register_type_strategy(Sample, SAMPLES)
        record = data.draw(st.from_type(kind))
        assert codec.from_json(kind, json.loads(json.dumps(codec.to_json(record)))) == record

    holds()


@FEW
@given(JSON, st.text(min_size=1, max_size=3))
def test_no_masked_value_holds_the_secret(value: Any, secret: str) -> None:
    assert secret not in texts(masked(value, {secret: ""}))


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in (key, *texts(part))]
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []
