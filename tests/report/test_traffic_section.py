"""Bytes by the GPU's counters, where they were read: they go before what operators tell."""

from dataclasses import replace

import pytest

from pipeline.analysis.traffic import moved
from pipeline.records.diagnostics import CountedBytes, Diagnostics, Note
from pipeline.records.run_record import MeasuredPeaks, StageRecord
from pipeline.report.sections import fusion
from pipeline.report.sections.bottleneck import sentence
from pipeline.report.sections.way import _moved
from tests.report import made_up_run as made_up
from tests.report.made_up_run import run

PEAKS = MeasuredPeaks({}, 4e12, None, None, None)
MOVED = 8e9  # of a stage whose operators can't be counted


def counted(stage: StageRecord, share: float = 0.5) -> StageRecord:
    """The stage with counters that saw `share` of its operators' bytes, of which its longest kernel moved half."""
    assert stage.profile is not None
    own = fusion.fusion_of(stage)
    moved = round(share * ((own.bytes_per_call if own else None) or MOVED))
    by_kernel = {stage.profile.kernels[0].name: moved // 2}
    seen = CountedBytes(moved - moved // 4, moved // 4, 5 * moved, 100, 99, "ncu 2026.1", by_kernel)
    return replace(stage, diagnostics=replace(stage.diagnostics or Diagnostics(), counted=seen))


ALL = replace(run(), stages=[counted(stage) if stage.profile else stage for stage in run().stages])


def test_the_share_of_the_bandwidth_is_by_the_counters() -> None:
    shares = []
    for found in (made_up.summary(run()), made_up.summary(ALL)):
        row = found.stage("compile")
        assert row is not None
        shares.append(row.bottleneck.evidence.memory)
        assert ("(hardware counters)" in sentence(row)) == (found.run is ALL)
    assert shares[0] is not None
    assert shares[1] == pytest.approx(shares[0] / 2, rel=1e-6)


def test_the_table_has_columns_for_them_where_one_stage_has_them() -> None:
    titles = fusion.section(made_up.summary(ALL)).table.titles
    assert titles[-2:] == ["GB by counters", "GB of L2"]
    assert "GB by counters" not in fusion.section(made_up.summary(run())).table.titles
    one = replace(run(), stages=[counted(stage) if stage.name == "compile" else stage for stage in run().stages])
    rows = {row[0].value: row[-1].text for row in fusion.section(made_up.summary(one)).table.rows}
    assert rows["compile"] != "–" == rows["eager"]


def test_the_winner_is_said_to_move_what_the_counters_saw() -> None:
    winner = made_up.summary(ALL).winner
    assert winner is not None
    assert moved(winner.stage).amount == winner.stage.diagnostics.counted.moved_bytes  # type: ignore[union-attr]
    said = _moved(made_up.summary(ALL), winner)
    assert said != _moved(made_up.summary(run()), made_up.summary(run()).winner)  # type: ignore[arg-type]
    assert said.startswith(f"{winner.name} moves ")
    mixed = [counted(stage) if stage.name == winner.name else stage for stage in run().stages]
    assert _moved(made_up.summary(replace(run(), stages=mixed)), winner) == ""


@pytest.mark.parametrize(("share", "said"), [(0.5, "caches saved the rest"), (2.0, "more is moved"), (1.1, "")])
def test_a_sentence_where_counters_and_operators_tell_two_tales(share: float, said: str) -> None:
    compiled = next(counted(stage, share) for stage in run().stages if stage.name == "compile")
    lines = fusion.counter_sentences([compiled], winner=None)
    assert [said in line for line in lines] == ([True] if said else [])
    (line,) = fusion.counter_sentences([compiled], winner="compile")
    assert (said or "close to the 13.0 GB by Inductor's count of what its kernels read and write.") in line


def test_why_nothing_was_counted_is_said_once() -> None:
    note = Note("hardware counters", "not read", "ncu, of NVIDIA Nsight Compute, isn't installed")
    stages = [
        replace(stage, diagnostics=replace(stage.diagnostics or Diagnostics(), notes=[note]))
        for stage in run().stages[:3]
    ]
    assert fusion.counter_sentences(stages, None) == [f"hardware counters: {note.text}."]


def test_each_kernel_has_its_bytes_and_its_bandwidth() -> None:
    half = next(stage for stage in ALL.stages if stage.name == "half")
    assert half.profile is not None
    table = fusion.kernels(half, PEAKS)
    kernel = half.profile.kernels[0]
    moved = half.diagnostics.counted.by_kernel[kernel.name]  # type: ignore[union-attr]
    assert [cell.value for cell in table.rows[0][5:]] == [moved, pytest.approx(moved / kernel.seconds_per_call / 4e12)]
    assert [cell.text for cell in table.rows[1][5:]] == ["–", "–"]
    assert len(fusion.kernels(next(stage for stage in run().stages if stage.name == "half"), PEAKS).titles) == 5


def test_the_page_shows_them() -> None:
    """On the stage's own page, with the tool that read them."""
    shown = made_up.page(ALL)
    assert "asked of the L2 cache (ncu 2026.1); 99 of its 100 kernels are the profile&#39;s." in shown
    assert "GB by counters" in shown
