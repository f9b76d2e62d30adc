"""A run is summarized once for all that is drawn of it; what a sweep over sizes says of padding and of searches."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pipeline.analysis import sweeps
from pipeline.analysis.attribution import remaining, steps
from pipeline.analysis.roofline import groups_of
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.analysis.sweeps import Job, Line, Point, curves, lines, padding, read_jobs
from pipeline.records import codec
from pipeline.records.diagnostics import Diagnostics, LayerWork, SearchAsked, SearchCount
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import CompileFacts, Execution, RunRecord, StageRecord
from pipeline.records.samples import WarmUp
from pipeline.report.sweep import curve_name, label, padding_texts, searches_text, summaries, summary_table, sweep_csv
from pipeline.report.sweep import sizes as section
from pipeline.report.write import main, write_sweep_report
from pipeline.stats.intervals import Estimate
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.report import made_up_run as made_up

PER_CALL = {256: 0.002, 384: 0.0045, 512: 0.008}  # seconds
BUILD = {256: 20.0, 384: 25.0, 512: 30.0}


def compiled(size: int, **fields: Any) -> StageRecord:
    ratio = made_up.BASELINE_SECONDS / PER_CALL[size]
    facts = CompileFacts(recompile_reasons=[], candidates_measured=12)
    return made_up.stage(
        "compile", ratio, BUILD[size], 10**9, "", **{"compile_facts": facts, "first_call_seconds": 1.0} | fields
    )


def quick(size: int) -> StageRecord:
    ratio = made_up.BASELINE_SECONDS / (3 * PER_CALL[size])
    return made_up.stage("half", ratio, 0.2, 10**9, "")


def job(size: int | None, *stages: StageRecord, batch: int = 8, **config: Any) -> RunSummary:
    whole = made_up.run(stages=list(stages))
    whole = replace(whole, config=replace(whole.config, **config))
    return made_up.summary(made_up.with_settings(whole, data={"size": size, "batch_size": batch}))


def sweep() -> list[RunSummary]:
    return [job(size, compiled(size), quick(size)) for size in (512, 256, 384)]


def point(size: int, cold: float, warm: float | None, spread: float = 0.0) -> Point:
    found = None if warm is None else Estimate(warm, warm - spread, warm + spread)
    return Point(size, 8, cold, found, 0, made_up.standard().stages[0], "ok")


PAYS = "it pays for fewer than"


@pytest.mark.parametrize(
    ("points", "said"),
    [
        # 41 s saved at 1.9 ms a call: after 41 / 0.0019 calls the padding has eaten what it saved
        (
            [(384, 41, 0.0081), (512, 60, 0.01)],
            [f"384 to 512 saves 41.0 s of set-up and costs 1.90 ms per call: {PAYS} 21,600 calls."],
        ),
        ([(384, 2, 0.1), (512, 60, 0.5)], [f"{PAYS} 5 calls."]),
        # intervals that overlap show neither that it costs nor that it doesn't, but how much at most
        (
            [(448, 30, 0.0099, 0.0002), (512, 30, 0.01, 0.0002)],
            [f"at most 500 µs per call: {PAYS} 60,000 calls, and whether it costs anything is not resolved."],
        ),
        # 2 ms a call that may be 3: 10,000 calls, not 15,000
        ([(448, 30, 0.008, 0.0005), (512, 30, 0.01, 0.0005)], [f"costs 2.00 ms per call: {PAYS} 10,000 calls."]),
        ([(448, 30, 0.012), (512, 30, 0.01)], ["saves 30.0 s of set-up and 2.00 ms per call: it pays."]),
        ([(256, 0.1, 0.01), (512, 0.1, 0.04)], ["eager: no gain from padding, as no size takes 1.00 s to set up."]),
        ([(1, 0.2, 0.001), (2, 9, 0.002), (3, 9, 0.004)], ["1 to 2 gains nothing: 200 ms", "2 to 3 saves 9.00 s", ""]),
        ([(256, 9, 0.001), (384, 9, None), (512, 9, 0.004)], ["eager: padding 256 to 512 saves"]),
        ([(384, 9, None), (512, 9, 0.004)], ["nothing is known"]),
    ],
)
def test_when_padding_pays_is_said(points: list[tuple[Any, ...]], said: list[str]) -> None:
    texts = padding_texts(Line("eager", [point(*each) for each in points]))
    assert all(part in text for part, text in zip(said, texts, strict=True))


def test_all_sizes_to_the_largest() -> None:
    """Two set-ups of 10 and 20 s are saved; over three sizes alike, a call costs (3 + 2 + 0) / 3 ms more."""
    small = [point(1, 10.0, 0.001), point(2, 20.0, 0.002)]
    largest = point(3, 30.0, 0.004)
    assert padding(small, largest).extra.value == pytest.approx(0.005 / 3)
    texts = padding_texts(Line("compile", [*small, largest]))
    assert len(texts) == 3
    assert "padding all 3 sizes to 3 saves 30.0 s" in texts[-1]
    assert "fewer than 18,000 calls" in texts[-1]


def encoders() -> list[Job]:
    """A sweep over a network's option, the size and the batch, as two jobs of each shape."""
    found: list[Job] = []
    for encoder in ("resnet18", "resnet34"):
        model = ModelSpec("smp", "", {"encoder_name": encoder}, "w.safetensors")
        for size, batch in ((256, 8), (512, 8), (256, 4)):
            summary = job(size, compiled(size), batch=batch, model=model)
            typed = "python -m pipeline -m model.options.encoder_name=resnet18,resnet34 data.size=256,512"
            summary = replace(summary, run=replace(summary.run, command=typed))
            found.append(Job(Path(str(len(found))), summary, ""))
    return found


def test_what_a_sweep_varies_has_its_column_and_its_curves() -> None:
    jobs = encoders()
    table = summary_table(jobs)
    column = table.titles.index("model.options.encoder_name")
    assert [row[column].text for row in table.rows] == ["resnet18"] * 3 + ["resnet34"] * 3
    assert "model.checkpoint" not in table.titles
    for axis in ("batch", "size"):
        found = curves(jobs, axis, "throughput")
        assert [dict(curve.apart)["model.options.encoder_name"] for curve in found] == ["resnet18", "resnet34"]
        assert all(len(curve.points) == 2 for curve in found)
        names = {curve_name(curve, axis) for curve in found}
        assert len(names) == 2
        assert all("encoder_name resnet" in name for name in names)
    header, *rows = (line.split(",") for line in sweep_csv(jobs).splitlines())
    assert header[:3] == ["job", "size", "model.options.encoder_name"]
    assert {row[2] for row in rows} == {"resnet18", "resnet34"}
    assert [label(line) for line in lines(summaries(jobs))] == [
        f"torch.compile, model.options.encoder_name {encoder}" for encoder in ("resnet18", "resnet34")
    ]


def few_blocks(size: int) -> StageRecord:
    seconds = made_up.BASELINE_SECONDS, PER_CALL[size] * {256: 1.0, 512: 0.1}[size]
    return compiled(size, pairs=[made_up.pair("eager", "compile", seconds, blocks=2)])


def test_times_that_are_not_resolved_give_no_advice() -> None:
    """The larger size seems faster, of two blocks: neither padding nor a batch is recommended by that."""
    runs = [job(size, few_blocks(size)) for size in (256, 512)]
    (said,) = [text for line in lines(runs) for text in padding_texts(line)]
    assert "what a call then costs is not resolved" in said
    assert "pays" not in said
    jobs = [Job(Path(str(batch)), job(256, few_blocks(256), batch=batch), "") for batch in (1, 2)]
    (found,) = curves(jobs, "batch", "throughput")
    assert not found.knee_is_resolved


def test_unsteady_size_makes_a_rough_figure() -> None:
    runs = [job(256, compiled(256, warm_up=WarmUp(1, 9.0, steady=False))), job(512, compiled(512))]
    found = section(runs)
    assert found.sentences[0].endswith("This is a rough figure: times had not settled at 256.")
    assert [row[-1].text for row in found.table.rows] == ["ok, unsteady", "ok"]


def test_table_of_a_sweep() -> None:
    found = section(sweep())
    titles = found.table.titles
    rows = [dict(zip(titles, row, strict=True)) for row in found.table.rows]
    assert [(row["stage"].text, row["size"].value) for row in rows] == [
        *(("torch.compile", size) for size in PER_CALL),
        *(("half precision", size) for size in PER_CALL),
    ]
    first = rows[0]
    assert first["cold s"].value == BUILD[256] + 1.0
    assert first["warm ms"].value == pytest.approx(PER_CALL[256], rel=0.01)
    assert first["warm ms/image"].value == pytest.approx(PER_CALL[256] / 8, rel=0.01)
    assert first["recompiles"].value == 0
    assert first["searches"].text == "12 candidates timed"
    assert rows[3]["recompiles"].text == "–"
    assert rows[3]["searches"].text == "none on record"


ASKED_CUDNN, ASKED_INDUCTOR = SearchAsked("cuDNN"), SearchAsked("Inductor")
ASKED_EXHAUSTIVE = SearchAsked("cuDNN for ONNX Runtime", "exhaustive")
CUDNN = SearchCount("cuDNN", "problems", 14)
EXHAUSTIVE = SearchCount("cuDNN for ONNX Runtime", "nodes", 23, "exhaustive")


@pytest.mark.parametrize(
    ("asked", "counted", "said"),
    [
        ([ASKED_CUDNN], [], "cuDNN times its own"),
        ([ASKED_EXHAUSTIVE], [], "cuDNN, exhaustive"),
        ([ASKED_INDUCTOR], [], "Inductor times its own"),
        ([], [], "none on record"),
        ([ASKED_CUDNN], [CUDNN], "cuDNN: 14 problems"),
        ([ASKED_CUDNN], [replace(CUDNN, count=1)], "cuDNN: 1 problem"),
        ([ASKED_EXHAUSTIVE], [EXHAUSTIVE], "cuDNN for ONNX Runtime, exhaustive: 23 nodes"),
        (
            [ASKED_INDUCTOR],
            [CUDNN, SearchCount("Inductor's templates", "problems", 22), SearchCount("Inductor", "candidates", 1204)],
            "cuDNN: 14 problems, Inductor's templates: 22 problems, Inductor: 1,204 candidates timed",
        ),
        ([ASKED_INDUCTOR], [CUDNN], "cuDNN: 14 problems, Inductor times its own"),
        ([], [SearchCount("Inductor", "candidates", 1)], "Inductor: 1 candidate timed"),
        ([], [SearchCount("own kernels", "candidates", 12)], "own kernels: 12 candidates timed"),
    ],
)
def test_searches_that_were_counted(asked: list[SearchAsked], counted: list[SearchCount], said: str) -> None:
    """The count stands in place of the words; who was asked and has no count keeps them."""
    facts = CompileFacts(candidates_measured=12) if "own kernels" in said else None
    ran: dict[str, Any] = {"compile_facts": facts, "diagnostics": Diagnostics(searches=counted)}
    runs = [job(size, compiled(size, searches_asked=asked, **ran)) for size in (256, 512)]
    assert {searches_text(point.stage) for point in lines(runs)[0].points} == {said}


def test_two_settings_are_two_lines() -> None:
    modes = [
        job(size, compiled(size, options={"mode": mode, "dtype": "auto"}))
        for size in (256, 512)
        for mode in ("default", "max-autotune")
    ]
    assert [label(line) for line in lines(modes)] == [
        "torch.compile, stage.mode default", "torch.compile, stage.mode max-autotune",
    ]  # fmt: skip
    batches = [job(size, compiled(size), batch=batch) for size in (256, 512) for batch in (1, 8)]
    assert [label(line) for line in lines(batches)] == ["torch.compile, batch 1", "torch.compile, batch 8"]
    nets = [job(size, compiled(size), model=ModelSpec(net)) for size in (256, 512) for net in ("unet", "unet_small")]
    assert [label(line) for line in lines(nets)] == [
        "torch.compile, model.name unet", "torch.compile, model.name unet_small",
    ]  # fmt: skip


def test_stage_that_failed_at_a_size_is_listed_and_not_padded() -> None:
    bad = compiled(384, status="failed", reason="out of memory", pairs=[], latencies=[], build_seconds=None)
    found = section([job(256, compiled(256)), job(384, bad), job(512, compiled(512))])
    assert [row[-1].text for row in found.table.rows] == ["ok", "failed", "ok"]
    assert len(found.sentences) == 1
    assert "padding 256 to 512" in found.sentences[0]


@pytest.mark.parametrize("sizes", [[512], [None, None], [512, 512], []])
def test_no_sizes_no_section(sizes: list[int | None]) -> None:
    assert section([job(size, compiled(512)) for size in sizes]) is None


def test_report_of_a_sweep_shows_it(tmp_path: Path) -> None:
    for number, found in enumerate(sweep()):
        codec.save(found.run, tmp_path / str(number))
    html = write_sweep_report(read_jobs(tmp_path), tmp_path).read_text(encoding="utf-8")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for shown in (html, text):
        assert "Sizes" in shown
        assert "torch.compile: padding 256 to 384 saves 21.0 s of set-up" in shown
        assert "half precision: no gain from padding" in shown
        assert "upper bounds" in shown


def test_a_sweep_summarizes_each_job_once(tmp_path: Path) -> None:
    small = made_up.run(stages=made_up.run().stages[:1])
    for number, size in enumerate((256, 512)):
        codec.save(made_up.with_settings(small, data={"size": size}), tmp_path / str(number))
    with patch.object(sweeps, "summarize", wraps=summarize) as computed:
        assert main([str(tmp_path)]) == 0
    assert computed.call_count == 2


UP = LayerWork("up", "ConvTranspose2d", "decoder 0", 400, 10, 20, 30)
CONVOLUTION = LayerWork("conv", "Conv2d", "decoder 0", 600, 20, 20, 30)


@pytest.mark.parametrize(("own", "multiplied"), [({}, 8 * 1000), ({"conv": 450.0}, 8 * 450)])
def test_a_composed_layer_multiplies_less(own: dict[str, float], multiplied: float) -> None:
    (group,) = groups_of([UP, CONVOLUTION], {"conv"})
    assert group.multiplied(8, Execution("fp16", layer_flops=own)) == multiplied


def loaded(**ratios: float) -> RunRecord:
    """A GPU's run: every stage interleaved with autocast, at full load."""
    stages = [
        stage_record(name, replace(steady_pair(value, a="amp", b=name), sustained=True), host_latencies=[0.1 / value])
        for name, value in ratios.items()
    ]
    return run_record(stages, environment=made_up.environment(), baseline="amp")


def test_a_gpus_record_is_about_autocast_at_full_load() -> None:
    found = summarize(loaded(eager=0.1, amp=1.001, fused=2.6))
    fused, eager = found.stage("fused"), found.stage("eager")
    assert (found.baseline, found.ranking.winner) == ("amp", "fused")
    assert (fused.ratio.value, fused.eager_ratio.value) == (pytest.approx(2.6), pytest.approx(26.0))
    assert fused.eager_ratio.bounded
    assert fused.sustained_seconds == fused.pace == fused.seconds.value
    assert (eager.compared.outcome, eager.eager_ratio.value) == ("slower", 1.0)
    assert fused.host_ratio == pytest.approx(2.6 / 1.001)


def test_ratios_are_to_what_was_measured_beside_the_stage() -> None:
    (only,) = summarize(loaded(fused=2.6)).stages
    assert only.ratio is not None
    assert (only.eager_ratio, only.host_ratio) == (None, None)
    (only,) = summarize(replace(loaded(fused=2.5), baseline_host_latencies=[0.3, 0.1, 0.2])).stages
    assert only.host_ratio == pytest.approx(0.2 / (0.1 / 2.5))


RUN = made_up.recorded()


def test_classes_add_up_to_the_gpus_time_and_layers_to_the_net() -> None:
    """Within 2 %, for every stage but the project's own, whose kernels begin while those before them end."""
    for stage in RUN.stages:
        assert stage.profile
        assert stage.explained.split
        classes = sum(row.seconds_per_call for row in stage.profile.kernels)
        measured = stage.explained.split.device_seconds
        overlap = stage.name in ("fused", "fp8") and classes > measured
        assert abs(classes / measured - 1) < (0.2 if overlap else 0.02), stage.name
    assert RUN.reference is not None
    assert sum(layer.flops for layer in RUN.reference.layers) == RUN.reference.flops_per_image
    for stage in RUN.stages:
        assert stage.diagnostics is not None
        assert stage.profile is not None
        layers = sum(layer.seconds_per_call for layer in stage.diagnostics.layers)
        kernels = sum(kernel.seconds_per_call for kernel in stage.profile.kernels)
        assert layers == pytest.approx(kernels, rel=0.05), stage.name


def test_no_layer_is_over_its_arithmetic_roof() -> None:
    """Each under the peak of its own precision; the first layer reads images in fp16."""
    found = made_up.summary(RUN)
    for stage in found.ranked:
        for layer in stage.layers:
            assert layer.compute_seconds <= layer.seconds * (1 + 1e-9), (stage.name, layer.name)
    winner = found.stage("fp8")
    assert winner is not None
    assert "encoder.0.0" in {layer.name for layer in winner.layers if layer.precision == "fp16"}
    left = remaining(winner)
    assert left is not None
    assert left.place == "decoder 3"


def test_a_composed_layer_is_no_reached_peak() -> None:
    """The most that was reached in fp16 is no more than a large product does, although `fused` multiplies less."""
    found = made_up.summary(RUN)
    (fused,) = (stage for stage in found.ranked if stage.name == "fused")
    assert fused.bottleneck.roofline.reached_peaks["fp16"].flops_per_s < 830e12
    assert fused.bottleneck.evidence.shares.matrix > 0.95


def test_a_step_within_the_noise_of_the_profile_is_not_explained() -> None:
    """compile to compile_max took 0.25 ms away, where the kernels of the profile tell of 0.52 ms."""
    by_name = {step.name: step for step in steps(made_up.summary(RUN))}
    assert by_name["compile_max"].finding == "unexplained"
    assert by_name["fused"].finding == by_name["fp8"].finding == "attributed"
