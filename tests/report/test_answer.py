"""The answer as a person would say it, what to choose from, and how to use it."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.analysis.run_comparison import compare, differences
from pipeline.compare import conclusion
from pipeline.export.command import asked_by
from pipeline.records.diagnostics import Diagnostics, TimeSplit
from pipeline.records.request import ExportKind
from pipeline.records.run_record import Artefact, Execution, RunRecord, StageRecord
from pipeline.records.samples import Energy, Service
from pipeline.report import answer, formatting, run_text
from pipeline.report.answer import choice_table, choices, numbers
from pipeline.report.charts import bars as charts
from pipeline.report.sections.cost import capacity, cost_table, cost_text
from pipeline.report.sections.ladder import by_time, ladder
from pipeline.report.terminal import first_screen
from pipeline.report.usage import Usage, usage
from pipeline.report.write import split
from pipeline.stats.intervals import Ratio
from tests.made_up_request import asked, changed, spec
from tests.report import made_up_run as made_up

RUN = made_up.run()
EAGER, AMP, HALF, COMPILE = (RUN.stages[at] for at in (0, 3, 4, 7))


def said(run: RunRecord) -> str:
    return answer.headline(made_up.summary(run))


def unresolved() -> RunRecord:
    times = (made_up.BASELINE_SECONDS, made_up.BASELINE_SECONDS / 2)
    again = [made_up.pair("eager", "eager", (times[0], 1.2 * times[0]))]
    return replace(RUN, stages=[replace(HALF, pairs=[made_up.pair("eager", "half", times, blocks=2)])], aa_pairs=again)


def untrained() -> RunRecord:
    return made_up.with_settings(RUN, model={"checkpoint": None})


@pytest.mark.parametrize(
    ("run", "headline"),
    [
        (made_up.beside_autocast(), "Use torch.compile: 1.6 × as fast as autocast, 0.0040 % of pixels change"),
        (RUN, "Use torch.compile: 11 × as fast as eager, 0.0040 % of pixels change"),
        (untrained(), "Use torch.compile: 11 × as fast as eager; masks not judged (no trained weights)"),
        (
            made_up.with_settings(RUN, model={"checkpoint": None, "target": "my_nets.Net", "trained": True}),
            "Use torch.compile: 11 × as fast as eager, 0.0040 % of pixels change",
        ),
        (replace(RUN, stages=[EAGER]), "Only the baseline was measured: eager, 82.0 ms for 8 images"),
        (unresolved(), "Not resolved: measure longer, or on an idle machine"),
        (replace(RUN, stages=made_up.unwell()), "No answer: no stage is both right and measured"),
        (replace(RUN, stages=[]), "Nothing is measured yet: no stage is on record"),
    ],
)
def test_the_headline_is_a_sentence(run: RunRecord, headline: str) -> None:
    assert said(run) == headline


def of_own_kernels() -> RunRecord:
    """A run of autocast, torch.compile and both kinds of own kernels, fp8 the fastest."""
    run, stages = made_up.beside_autocast(), []
    for name, share in (("compile", 0.5), ("fused", 0.4), ("fp8", 0.2)):
        times = (made_up.BASELINE_SECONDS, share * made_up.BASELINE_SECONDS)
        ran = Execution("fp8" if name == "fp8" else "fp16")
        own = made_up.stage(name, 2.0, 30.0, 10**9, "", pairs=[made_up.pair("amp", name, times)], execution=ran)
        exports: ExportKind | None = None if name == "compile" else "own_kernels"
        stages.append(replace(own, spec=replace(own.spec, exports=exports)))
    return replace(run, stages=stages)


def test_the_winner_is_compared_with_other_makers_then_its_own_then_the_baseline() -> None:
    summary = made_up.summary(of_own_kernels())
    said = answer.headline(summary)
    assert re.match(r"Use own kernels \(fp8\): [\d.]+ ms, 2\.5 × as fast as torch\.compile, 2\.0 × own kernels", said)
    assert re.search(r"\(fp16\), 5\.0 × autocast; 0\.0040 % of pixels change$", said)
    first = numbers(summary)[0]
    assert (first.value, first.label) == ("2.50 ×", "as fast as torch.compile")
    rest = r"2\.00 × own kernels \(fp16\); 5\.00 × autocast; 95 % interval \[.*\] within this run"
    assert re.fullmatch(rest, first.note)
    text = " ".join(answer.paragraph(summary))
    assert "Without fp8: own kernels (fp16), " in text
    assert "Another build of both may move the ratio to torch.compile by 8.7 % (95 %)." in text
    assert "Not compared here: TensorRT (not asked for: stage=tensorrt) and XLA (not asked for: stage=xla)." in text
    assert f"{summary.run.command}; NVIDIA H200, 2026-11-20; samples " in run_text.citation(summary.run)


@pytest.mark.parametrize(("kernels", "told"), [(0.6, True), (0.99, False)])
def test_a_baseline_that_waits_for_the_host_is_told(kernels: float, told: bool) -> None:
    run = of_own_kernels()
    each = made_up.BASELINE_SECONDS
    split = TimeSplit(2 * each, kernels * each, 0.0, each, 0.0, 0.0)
    pairs = [made_up.pair("amp", "amp", (each, each))]
    first = made_up.stage("amp", 1.0, 0.1, 10**9, "", pairs=pairs, diagnostics=Diagnostics(split=split))
    graphs = [made_up.pair("amp", "cuda_graph", (each, 0.8 * each))]
    graph = made_up.stage("cuda_graph", 1.25, 0.1, 10**9, "", pairs=graphs)
    said = " ".join(answer.paragraph(made_up.summary(replace(run, stages=[first, graph, *run.stages]))))
    assert bool(re.search(r"autocast leaves the GPU idle for (39|40|41) % of a call", said)) == told
    assert ("own kernels (fp8) is 4.0 × as fast as the same network in one CUDA graph." in said) == told


def test_the_ladder_goes_by_time_without_the_skipped() -> None:
    """A machine that was slower while one stage was measured moves it nowhere."""
    slow = 1.5 * made_up.BASELINE_SECONDS
    amp = replace(AMP, energy=None, pairs=[made_up.pair("eager", "amp", (slow, slow / 6.7))])
    summary = made_up.summary(replace(RUN, stages=[*RUN.stages[:3], amp, *RUN.stages[4:]]))
    shown = by_time(summary)
    ratios = [stage.ratio.value for stage in shown if stage.ratio and stage.ranked]
    assert ratios == sorted(ratios, reverse=True)
    assert [stage.ranked for stage in shown] == sorted((stage.ranked for stage in shown), reverse=True)
    assert {stage.name for stage in summary.stages} - {stage.name for stage in shown} == {"absent"}
    assert [stage.name for stage in by_time(made_up.summary(replace(RUN, stages=[RUN.stages[11]])))] == ["absent"]


def test_an_impossible_time_stands_on_the_first_screen() -> None:
    """In the title, in the first lines of the page and Markdown, and on a terminal."""
    why = "impossible: its time in the samples makes 900 TFLOP/s of the network; the highest peak is 781 (bf16)"
    refused = replace(COMPILE, status="inaccurate", failure="impossible", reason=why)
    run = replace(RUN, stages=[EAGER, AMP, refused])
    assert said(run).endswith("pixels change; torch.compile refused for an impossible time")
    screens = [
        made_up.page(run).partition("<nav")[0].partition("<h1>")[2],
        made_up.as_markdown(run).partition("| method")[0],
        made_up.printed(first_screen(made_up.summary(run))).partition("stage ")[0],
    ]
    for screen in screens:
        shown = " ".join(screen.split())
        assert "compile refused for an impossible time" in shown
        assert "makes 900 TFLOP/s of the network" in shown.replace("\u00a0", " ")


def test_what_is_not_resolved_offers_no_choice_but_a_command() -> None:
    summary = made_up.summary(unresolved())
    assert answer.choice_table(summary).rows == []
    assert answer.longer(summary) == "python -m pipeline data.batch_size=8 measure=thorough"
    for text in (made_up.as_markdown(unresolved()), made_up.page(unresolved())):
        told = ("(no interval)", "too few for an interval", "The noise floor of this machine is ")
        assert all(words in text for words in told)
        assert "Not compared here: TensorRT (not asked for: stage=tensorrt) and XLA" in text.replace("\u00a0", " ")
    assert "What would resolve it" in text
    assert 'id="choices"' not in text
    assert "half precision: Yes: 0.0040 % of pixels change class" in text
    assert "part hatched" in text
    assert "hatched" not in made_up.page(RUN).split("</style>")[1]


def test_a_baseline_that_drifted_has_the_time_beside_the_winner() -> None:
    summary = made_up.summary(RUN)
    steady = [replace(each, sustained_seconds=None) for each in summary.stages]
    assert numbers(replace(summary, stages=steady))[1].note.startswith("eager takes ")
    slower = [
        replace(each, seconds=replace(each.seconds, value=0.02))
        for each in steady
        if each.name == "compile" and each.seconds
    ]
    note = numbers(replace(summary, stages=[steady[0], *slower]))[1].note
    assert re.fullmatch(r"eager took 2\d\d ms beside it, and 8\d\.\d ms at another time", note)


def test_dominated_stages_are_no_choice() -> None:
    """One that is slower, and noticeably better in nothing, isn't offered; the baseline is, to compare with."""
    summary = made_up.summary(RUN)
    names = [stage.name for stage in choices(summary)]
    assert names[0] == "compile"
    assert {"tf32", "channels_last"}.isdisjoint(names)
    assert "cuda_graph" in names  # it is set up sooner than what is faster
    assert names[-1] == "eager"


def test_a_stage_that_needs_far_less_memory_is_a_choice() -> None:
    slow = replace(HALF, build_seconds=COMPILE.build_seconds, first_call_seconds=COMPILE.first_call_seconds)
    lean = replace(slow, memory=replace(HALF.memory, process_bytes=10**8))
    heavy = replace(slow, memory=COMPILE.memory)
    for stage, offered in ((lean, True), (heavy, False)):
        found = choices(made_up.summary(replace(RUN, stages=[COMPILE, RUN.stages[6], stage])))
        assert ("half" in [each.name for each in found]) is offered


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("name", ["eager", "tf32", "channels_last", "amp", "half", "compile"])
def test_the_lines_that_use_a_stage_run(name: str, axes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = replace(next(stage for stage in RUN.stages if stage.name == name), artefacts=[])
    machine = replace(made_up.environment(), device="cpu")
    data = replace(RUN.config.data, name="samples" if axes == 2 else "volume")
    settings = replace(RUN.config, data=data)
    if stage.execution.precision == "fp16":
        stage = replace(stage, execution=replace(stage.execution, precision="bf16"))
    on_cpu = replace(RUN, environment=machine, stages=[stage], config=settings)
    found = made_up.summary(on_cpu).stages[0]
    monkeypatch.setattr(torch, "compile", lambda net, mode: net)
    for switch in ("benchmark", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, switch, getattr(torch.backends.cudnn, switch))
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=SimpleNamespace()))
    net = (nn.Conv2d if axes == 2 else nn.Conv3d)(3, 2, 3, padding=1).eval()
    place: dict[str, Any] = {"net": net, "batch": torch.rand(2, 3, *[8] * axes)}
    exec(usage(made_up.summary(on_cpu), found).code, place)
    assert place["masks"].shape == (2, *[8] * axes)


def test_a_single_channel_is_cut_at_zero() -> None:
    layers = [replace(layer, out_channels=1) for layer in RUN.reference.layers]
    binary = replace(RUN, reference=replace(RUN.reference, layers=layers))
    summary = made_up.summary(binary)
    for stage in summary.ranked:
        assert ".argmax(1)" not in usage(summary, stage).code
    assert any("[:, 0] > 0" in usage(summary, stage).code for stage in summary.ranked)


def used(stage: StageRecord) -> Usage:
    """How to use a stage as that of the made-up run."""
    summary = made_up.summary(RUN)
    return usage(summary, replace(summary.stages[4], stage=stage))


PROGRAM = 'torch.jit.load("RUN/torchscript/model.pt")'


@pytest.mark.parametrize(
    ("instead", "path", "line"),
    [
        ("", "fused/net/net.pt2", 'load(Path("RUN/fused/net"))'),
        ("", "onnxruntime/model.onnx", 'InferenceSession("RUN/onnxruntime/model.onnx", providers=["CUDA'),
        ("", "torchscript/model.pt", f"net = torch.jit.optimize_for_inference({PROGRAM})\n"),
        ("the frozen program", "torchscript/model.pt", f"net = {PROGRAM}\n"),
    ],
)
def test_what_a_stage_left_is_loaded_as_it_ran(instead: str, path: str, line: str) -> None:
    left = [Artefact(path, "net", 9, "ab")]
    stage = made_up.stage(path.partition("/")[0], 9.0, 1.0, 10**9, "", artefacts=left)
    found = used(replace(stage, execution=replace(stage.execution, instead=instead)))
    assert found.path == path
    assert line in found.code


def test_a_stage_that_left_nothing_is_built_again_by_a_command() -> None:
    sly = Artefact("../../etc/net.pt2", "net", 9, "ab")
    found = used(made_up.stage("fp8", 9.0, 1.0, 10**9, "", artefacts=[sly]))
    assert (found.language, found.path) == ("sh", "")
    assert found.code == "python -m pipeline data.batch_size=8 stage=fp8"


def test_the_lines_of_a_net_that_takes_no_channels_last_lay_nothing_out() -> None:
    stage = changed(HALF, target="pipeline.stages.half", artefacts=[], net_layout="NCHW")
    expected = {"net = net.to(torch.float16)", "    masks = net(batch.to(torch.float16)).argmax(1)"}
    assert expected <= {*used(stage).code.splitlines()}


@pytest.mark.parametrize(("form", "named"), [("exported", True), (None, False)])
def test_the_export_is_named_where_there_is_one(form: ExportKind | None, named: bool) -> None:
    found = used(changed(HALF, target="pipeline.stages.half", exports=form, artefacts=[]))
    command = found.code.splitlines()[-2].removeprefix("# ").partition("  packs")[0].split()
    assert (command[:3] == ["python", "-m", "pipeline.export"]) is named
    assert not named or asked_by(command[3:]).stage == "half"


def test_what_a_service_is_told_to_set_is_taken() -> None:
    command = shlex.split(capacity(made_up.summary(RUN)).note.partition("required: ")[2].rstrip("."))
    folders, asked = split(command[3:])
    assert (folders, sorted(asked.report)) == ([Path("RUN")], ["target_images_per_second", "target_p99_ms"])


CASTS = Execution("fp16", casts_own_values=True)


@pytest.mark.parametrize(
    ("stage", "fields", "lead"),
    [
        (HALF, {"execution": CASTS}, "The network makes fp32 values that half weights refuse."),
        (COMPILE, {"execution": CASTS}, "The network makes fp32 values that half weights refuse."),
        (HALF, {"options": {"keep_fp32": ["head"]}}, "Modules stay in fp32 where half precision ends."),
    ],
)
def test_a_net_that_stays_in_fp32_in_part_is_exported(stage: StageRecord, fields: dict[str, Any], lead: str) -> None:
    target = f"pipeline.stages.{stage.name}"
    found = used(changed(stage, target=target, exports="exported", **fields))
    assert (found.language, found.code) == ("sh", f"python -m pipeline.export RUN --stage {stage.name} --to DIR")
    assert found.lead.startswith(lead)


def test_an_unresolved_run_has_no_table_of_unknowns_and_no_figure_more_than_its_ladder() -> None:
    """Cost is one sentence, what has no form here is folded, and a folded stage says that its ratio isn't resolved."""
    absent = made_up.unwell()[2]
    run = replace(unresolved(), stages=[*unresolved().stages, absent])
    page, text = made_up.page(run), made_up.as_markdown(run)
    for told in (page, text):
        assert "The best stage by number of images is unknown" in told.replace("&#39;", "'")
        assert "worth it from" not in told
    assert 'id="cost-table"' not in page
    assert "2.00 × autocast, not resolved" not in page
    assert re.search(r"2(\.0)? × [a-z]+, not resolved ·", page.replace("\u00a0", " "))
    assert re.search(r'<p class="quiet">Skipped: absent \(needs a GPU\)\.</p>', page)
    assert "<strong>Not ranked</strong>" not in page


def paced(name: str, seconds: float, images: int | None, **fields: Any) -> StageRecord:
    """Return a stage of so many seconds interleaved, which takes 5 seconds at full load to make so many images."""
    energy = Energy(3000.0, 5.0, images, 75.0) if images else None
    pairs = [made_up.pair("eager", name, (0.04, seconds))]
    return made_up.stage(name, 1.0, 0.1, 10**9, "", **{"pairs": pairs, "energy": energy, **fields})


def test_both_paces_are_shown_and_cost_takes_the_slower() -> None:
    """Interleaved 10 ms per call of 8 images, sustained 12.5 ms: 640 images/s, and both ratios."""
    found = made_up.summary(made_up.run(stages=[paced("eager", 0.04, 1000), paced("half", 0.01, 3200)]))
    row = found.stage("half")
    assert (row.sustained_seconds, row.images_per_second) == (0.0125, 640)
    assert any(warning.code == "slower at steady state" for warning in row.warnings)
    titles = ladder(found).titles
    assert ladder(found).rows[0][titles.index("ms")].text == "12.5"
    assert ladder(found).rows[0][titles.index("ms interleaved")].text == "10.0"
    assert (numbers(found)[1].value, numbers(found)[1].note) == ("12.5 ms", "eager takes 40.0 ms")
    assert choice_table(found).titles[1] == "ms at steady state"
    assert cost_table(found).rows[0][1].text == "640"


def test_without_a_stretch_at_full_load_the_interleaved_samples_stand_for_it() -> None:
    run = made_up.run(stages=[paced("half", 0.01, None)])
    (row,) = made_up.summary(run).stages
    assert row.sustained_seconds is None
    assert row.images_per_second == 8 / row.seconds.value
    assert numbers(made_up.summary(run))[1].label == "for 8 images"
    assert numbers(made_up.summary(run))[1].note == "eager took 40.0 ms beside it"  # though it is no stage of its own
    assert choice_table(made_up.summary(run)).titles[1] == "ms"


@pytest.mark.parametrize(("service", "fitting"), [(None, 97), (Service(1.5, 10**9, None, 2 * 10**9), 75)])
def test_a_service_is_told_the_pace_that_lasts_beside_the_tail_of_a_call(service: Service | None, fitting: int) -> None:
    stages = [paced("eager", 0.04, 1000), paced("half", 0.01, 3200, latencies=[0.011] * 20, service=service)]
    lines = cost_text(made_up.summary(made_up.run(stages=stages)))
    assert "\n".join(lines[-3:]) == (
        "For a service that is built and warm: half precision, 12.5 ms per call at steady state; "
        "p50 11.0 ms, slowest of 20 11.0 ms for single calls on an otherwise idle GPU.\n"
        "A million images then cost 0.434 times the price of an hour of this device.\n"
        f"Replicas: {fitting} fit into this GPU's memory; they share its time."
    )


def test_samples_at_full_load_are_shown_once() -> None:
    sustained = [replace(made_up.pair("eager", "half", (0.04, 0.010)), sustained=True)]
    found = made_up.summary(made_up.run(stages=[paced("half", 0.01, 3200, pairs=sustained)]))
    assert "ms" in ladder(found).titles
    assert "ms interleaved" not in ladder(found).titles
    (row,) = made_up.csv_rows(found)
    assert row["seconds_per_call"] == row["sustained_seconds_per_call"] != ""


ONE_BLOCK = Ratio(113.193, 113.193, 113.193, 1, 1, doubt="few blocks")


def test_chart_draws_error_bars_only_of_intervals() -> None:
    bounded = charts.ladder([("half", replace(ONE_BLOCK, doubt=None, low=100.0), "winner")], "eager")
    bare = charts.ladder([("half", replace(ONE_BLOCK, low=100.0), "winner")], "eager")
    assert "whisker" in bounded
    assert "whisker" not in bare


def test_stages_left_out_are_named_and_those_lost_by_an_early_end_regress() -> None:
    """What two runs have in none is not called unchanged."""
    first, second = (made_up.run(stages=RUN.stages[:count]) for count in (3, 1))
    left_out, lost = compare(first, second), compare(first, replace(second, finished=False))
    assert conclusion(left_out) == "Nothing changed beyond the noise. Not in B: tf32 and channels_last."
    assert [change.note for change in lost[1:]] == ["run B did not finish"] * 2
    assert conclusion(lost).startswith("Regressed: tf32 and channels_last.")
    said = conclusion(compare(second, made_up.run(stages=RUN.stages[1:2])))
    assert said.startswith("No stage was measured in both runs")
    assert "Nothing changed" not in said


def test_a_wide_interval_is_said_in_place_of_its_middle() -> None:
    """Such as where the baseline is bound by a busy host: 6.8 would claim a digit that nobody measured."""
    assert formatting.times_as_fast(Ratio(6.75, 3.38, 10.2, 6), 2) == "3.4 to 10 ×"
    assert formatting.times_as_fast(Ratio(8.98, 8.9, 9.6, 6), 3) == "9.0 ×"
    assert formatting.times_as_fast(Ratio(6.75, 3.38, 10.2, 2, doubt="few blocks"), 2) == "6.8 ×"


def test_a_stage_of_one_run_alone_is_no_difference_of_settings() -> None:
    """It has a line of its own; of the stages of both what they were asked for is compared, in a ladder or alone."""
    half, amp = spec("half", summary="half precision", adds="no casts", options={"dtype": "auto"}), spec("amp")
    ladder = asked(stages=[half, amp], ladder=True)
    alone = asked(stages=[replace(half, options={"dtype": "bf16"}, summary="another text")])
    first, second = (made_up.run(config=config) for config in (ladder, alone))
    assert [(it.what, it.old, it.new) for it in differences(first, second)] == [("stage.half.dtype", "auto", "bf16")]
    assert differences(first, made_up.run(config=replace(ladder, ladder=False, strict=False))) == []
