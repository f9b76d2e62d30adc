"""Fewer bits: which stages stand beside each other, and their figures."""

from dataclasses import replace

from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records.run_record import Artefact, Execution, StageRecord
from pipeline.report.sections import bits
from pipeline.stats.intervals import Ratio
from tests.report import made_up_run as made_up

INT8 = Execution("int8", {"encoder.0.0": "fp32"}, None, "ONNX Runtime", captured=False, fuses=True)


def with_int8() -> RunSummary:
    """Eager and half of the made-up ladder, and int8 with a layer in fp32, one of whose classes loses Dice."""
    lossy = made_up.accuracy(relative_l2=0.021, flipped_share=4e-4, dice=[0.98, 0.935])
    few = made_up.stage("int8", 9.0, 30.0, 10**9, "8 bits", execution=INT8, accuracy=lossy)
    files = [Artefact("int8/model.onnx", "onnx", 2**20, ""), Artefact("int8/code.py", "generated code", 2**20, "")]
    eager, half = made_up.run().stages[0], made_up.run().stages[4]
    stages: list[StageRecord] = [eager, half, replace(few, artefacts=files)]
    return summarize(made_up.run(stages=stages, aa_pairs=[]))


FOUND = with_int8()


def test_fewer_bits_stand_beside_eager_and_the_fastest_with_more() -> None:
    shown = bits.table(FOUND)
    assert [row[0].value for row in shown.rows] == ["eager", "half", "int8"]
    int8 = dict(zip(shown.titles, (cell.text for cell in shown.rows[-1]), strict=True))
    every = [layer.name for layer in made_up.layers() if layer.flops]
    assert every
    assert int8["layers"] == f"{len(every) - ('encoder.0.0' in every)} of {len(every)}"
    assert (int8["error"], int8["Dice"], int8["file MiB"]) == ("0.021", "0.9575", "1.00")
    assert int8["Dice change, points"] == "−0.50"
    assert (int8["bits"], int8["runtime"], int8["outcome"]) == ("int8", "ONNX Runtime", "faster")
    assert dict(zip(shown.titles, shown.rows[0], strict=True))["layers"].text == "–"


def test_the_sentence_names_the_fastest_of_each_and_what_fewer_bits_lose() -> None:
    first, second = bits.sentences(FOUND)
    assert first.startswith("The fastest with 8 bits a value is int8, 9.0")
    assert "the fastest with more is half, 11." in first
    assert second.startswith("0.040 % of int8's pixels change class. Dice by class: class 0 0.9800 (fp32 ")


def test_the_fastest_is_so_by_its_ratio_and_none_is_where_nothing_is_resolved() -> None:
    late = [replace(stage, sustained_seconds=1e3) if stage.name == "half" else stage for stage in FOUND.stages]
    assert "the fastest with more is half, " in bits.sentences(replace(FOUND, stages=late))[0]
    busy = FOUND.ranking.noise.unresolved(Ratio(2.0, 1.0, 4.0, 3, doubt="few blocks"))
    (said,) = bits.sentences(replace(FOUND, ranking=replace(FOUND.ranking, unresolved=busy)))
    assert said.startswith("0.040 % of int8's pixels change class.")


def test_a_run_without_such_a_stage_has_no_such_part() -> None:
    assert bits.table(made_up.summary(made_up.run())).rows == []
    assert bits.sentences(made_up.summary(made_up.run())) == []
    assert "<summary>Fewer bits</summary>" not in made_up.as_markdown(made_up.run())
