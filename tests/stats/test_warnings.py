"""Each guard has a fault that trips it, and a clean measurement that doesn't."""

from dataclasses import replace

import pytest

from pipeline.measure.sampling import take_sample
from pipeline.orchestrate.trials import ABOVE_PEAK, SAVED, within_physics
from pipeline.records.data_words import IMAGES, VOLUMES
from pipeline.records.diagnostics import BatchGrowth, Diagnostics, KernelRow, Profile
from pipeline.records.plan import Plan
from pipeline.records.run_record import Execution, MeasuredPeaks, Reference, RunRecord
from pipeline.records.samples import Block, Calibration, Energy, ImageSet, MaskCounts, Pair, Sample, WarmUp
from pipeline.stats import warnings
from pipeline.stats.intervals import drift
from pipeline.stats.ranking import ranking
from tests.fake_machine import CALLS, SAMPLE_SECONDS, FakeClock, pair_of, run_record, stage_record, steady_pair
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

CLEAN = steady_pair(1.5, device_seconds=0.02, clock_mhz=1980)


def with_baseline(pair: Pair, **fields: object) -> Pair:
    made = []
    for block in pair.blocks:
        first, second = block.baseline
        made.append(Block(block.order, (replace(first, **fields), replace(second, **fields)), block.stage))  # type: ignore[arg-type]
    return replace(pair, blocks=made)


FAULTS: dict[str, tuple[Pair, str, str]] = {
    "a side stream": (steady_pair(1.5, device_seconds=0.001), "clocks disagree", "20 ms of wall time and 1 ms"),
    "a compiler at work": (steady_pair(1.5, retries=3, disturbed=True), "not at rest", "60 of 60 samples"),
    "a hot device": (
        steady_pair(1.5, throttle_reasons=["thermal"]), "throttled", "0 % of the baseline's samples and 1",
    ),
    "stray samples": (
        pair_of(lambda i: (0.02, (0.01 + 1e-5 * (i % 5)) * (3 if i % 10 == 9 else 1))), "outliers", "of 60 samples are",
    ),
    "a warming room": (pair_of(lambda i: (0.02 * (1 + 0.002 * i), 0.01)), "drift", "slower at the end"),
    "a clock that halves": (pair_of(lambda i: (0.02 * (1 + (i > 14)), 0.01 * (1 + (i > 14)))), "unfair", "100 % slow"),
    "one that doubles": (pair_of(lambda i: (0.02 / (1 + (i > 14)), 0.01 / (1 + (i > 14)))), "unfair", "100 % faster"),
}  # fmt: skip


@pytest.mark.parametrize(("pair", "name", "text"), FAULTS.values(), ids=FAULTS)
def test_an_injected_fault_is_named_with_its_figure_and_a_remedy(pair: Pair, name: str, text: str) -> None:
    [found] = warnings.sample_warnings([pair])
    assert found.code == name
    assert text in found.text
    assert found.remedy


def test_a_clean_measurement_has_no_warning() -> None:
    pair = with_baseline(CLEAN, clock_mhz=1960, device_seconds=0.03)
    assert warnings.sample_warnings([pair]) == []
    assert warnings.sample_warnings([]) == []


@pytest.mark.parametrize(("wall", "device", "named"), [(1e-3, 985e-6, 0), (1e-3, 975e-6, 1), (1e-4, 9e-5, 0)])
def test_clocks_may_differ_by_two_per_cent_or_twenty_microseconds(wall: float, device: float, named: bool) -> None:
    pair = pair_of(lambda i: (wall, wall), device_seconds=device)
    assert (warnings.clocks_disagree([pair]) is not None) == named


@pytest.mark.parametrize("seen", [0.0, 0.5])
def test_a_stage_that_returns_early_is_caught_by_its_slices(seen: float) -> None:
    """Its call queues work that the events on its stream see only in part; the device-wide wait sees it all."""
    clock = FakeClock()
    honest = take_sample(lambda _: clock.work(0.01), int, 5, clock, Plan())
    early = take_sample(lambda _: clock.work(0.01, seen=0.01 * seen), int, 5, clock, Plan())
    blocks = [Block("ABBA", (honest, honest), (taken, taken)) for taken in (honest, early)]
    assert warnings.clocks_disagree([Pair("eager", "stage", blocks[:1])]) is None
    assert warnings.clocks_disagree([Pair("eager", "stage", blocks[1:])]) is not None


def test_drift_is_the_last_medians_over_the_first() -> None:
    first, last = ([Sample(2, seconds, None) for seconds in times] for times in ((1.0, 2.0, 9.0), (2.1, 2.2, 2.3)))
    assert drift(first, last) == pytest.approx(0.1)
    names = [found.code if (found := warnings.drifted(change)) else None for change in (0.019, -0.02, 0.099, -0.1)]
    assert names == [None, "drift", "drift", "unfair"]


@pytest.mark.parametrize(("pictures", "apart", "codes"), [
    (1, False, ["calibrated on judged images", "few pictures"]), (9, True, ["few pictures"]), (10, True, []),
    (None, True, []),
])  # fmt: skip
def test_masks_judged_on_few_pictures_or_the_calibration_s(pictures: int | None, apart: bool, codes: list[str]) -> None:
    """Masks that are not judged need no pictures."""
    chosen = Calibration(ImageSet(8, []), None, choice_apart=True, apart=apart)
    stage = stage_record("fp8", steady_pair(1.5), calibration=chosen, accuracy=made_up.accuracy(pictures=pictures))
    assert [found.code for found in warnings.stage_warnings(stage, 2, IMAGES)] == codes
    assert "few pictures" not in [found.code for found in warnings.stage_warnings(stage, 2)]
    whole = replace(stage, accuracy=made_up.accuracy(images=9, pictures=9))
    assert warnings.stage_warnings(whole, 2, VOLUMES)[-1].text == "judged on 9 volumes; an interval takes 10"


@pytest.mark.parametrize("shared", [False, True])
def test_a_shared_device_a_busy_processor_and_an_unsteady_stage_are_named(shared: bool) -> None:
    machine = replace(made_up.environment(), others_on_device=["python (7): 512 MiB"] if shared else [])
    stage = stage_record("half", None, warm_up=WarmUp(20, 2.0, not shared))
    found = [*warnings.run_warnings(run_record([stage], environment=machine)), *warnings.stage_warnings(stage, 1)]
    assert [warning.code for warning in found] == (["shared device", "unsteady"] if shared else [])
    assert (warnings.busy_processor(1.5 if shared else 0.9, 2) is not None) is shared


@pytest.mark.parametrize(
    ("sustained", "loop", "said"),
    [
        (False, None, ""),
        (False, 0.00411, ""),
        (False, 0.0046, "4.6 ms, 15 % more than interleaved"),
        (True, 0.00407, ""),
        (True, 0.00412, "4.12 ms, 3.0 % more than in its samples"),
        (True, 0.0046, "4.6 ms, 15.0 % more than in its samples"),
    ],
)
def test_a_stage_that_is_slower_in_a_loop_is_named(sustained: bool, loop: float | None, said: str) -> None:
    """From 3 % on of interleaved samples, 2 % of samples at steady state; 4 ms, of two images a call."""
    pair = replace(pair_of(lambda _: (0.08, 0.04)), sustained=sustained)
    stage = stage_record("half", pair, energy=Energy(1.0, 1000 * loop, 2000, 0.0) if loop else None)
    found = [warning for warning in warnings.stage_warnings(stage, 2) if warning.code == "slower at steady state"]
    assert [f"a call takes {said}" in warning.text for warning in found] == ([True] if said else [])


@pytest.mark.parametrize(
    ("fp64", "batch", "said"),
    [
        (1e-6, 1e-6, ""),
        (0.104, 1e-7, "0.1 from fp64"),
        (None, 0.108, "0.11 from each image alone"),
        (0.104, 0.108, "0.1 from fp64 and 0.11 from each image alone"),
    ],
)
def test_a_reference_that_is_itself_wrong_is_named(fp64: float | None, batch: float, said: str) -> None:
    reference = Reference(10**9, 10**6, 4 * 10**6, None, 0.0, batch, fp64, 10**7, [], None)
    found = warnings.reference_in_doubt(reference)
    assert (found.text if found else "") == (f"the fp32 network's logits are {said} (relative L2)" if said else "")


@pytest.mark.parametrize(
    ("classes", "trained", "warns"), [([1], True, True), ([0, 1], True, False), ([1], False, False), ([], True, False)]
)
def test_a_trained_net_whose_masks_are_one_class_is_in_doubt(classes: list[int], trained: bool, warns: bool) -> None:
    """No wrong mask would differ from them; masks of random weights are not judged at all."""
    run = made_up.with_settings(made_up.run(), model={"trained": trained})
    run = replace(run, reference=replace(run.reference, mask_classes=classes))
    found = [warning.text for warning in warnings.run_warnings(run) if warning.code == "net in doubt"]
    assert found == (["the network's own masks are class 1 in every place of all judged images"] if warns else [])


def on_a_gpu(**fields: object) -> RunRecord:
    """A run of batch 2 whose eager stage has these fields."""
    return run_record([stage_record("eager", None, **fields)], environment=made_up.environment())


def ill(run: RunRecord) -> list[str]:
    return [warning.text for warning in warnings.run_warnings(run) if warning.code == "ill baseline"]


@pytest.mark.parametrize(("seconds", "share", "said"), [
    (0.0218, 0.09, []),
    (0.0223, 0.0, ["eager: an image takes 11.2 ms in a batch of 2 and 10 ms in one of 1"]),
    (0.02, 0.5, ["eager: FFT kernels take 50 of 100 ms"]),
])  # fmt: skip
def test_a_baseline_slower_by_batch_or_by_transforming_is_ill(seconds: float, share: float, said: list[str]) -> None:
    """From 10 % per image on, or 10 % of its kernels' time; neither a CPU's nor another stage."""
    growth = Diagnostics(growth=BatchGrowth([1, 2], [0.010, seconds]))
    times = {"void fft2d_r2c_32x32": 0.1 * share, "sm90_xmma_fprop": 0.1 * (1 - share)}
    kernels = [KernelRow(name, "convolution", 4, each) for name, each in times.items()]
    run = on_a_gpu(diagnostics=growth, profile=Profile(1, 0.1, 1.0, 8, kernels, None))
    assert ill(run) == said
    assert ill(replace(run, environment=None)) == []
    assert ill(replace(run, stages=[changed(run.stages[0], name="half")])) == []


@pytest.mark.parametrize(("reason", "named"), [("power", False), ("thermal", True)])
def test_at_full_load_the_power_cap_is_expected_and_heat_is_not(reason: str, named: bool) -> None:
    rested = steady_pair(1.5, throttle_reasons=[reason])
    assert warnings.throttled([rested]) is not None
    found = warnings.throttled([replace(rested, sustained=True)])
    assert (found is not None) is named


def test_the_report_warns_of_it_first() -> None:
    how = Execution("fp16", instead="all of it by Inductor, in fp16: 5 axes")
    stage = stage_record("fp8", steady_pair(2.0, b="fp8"), execution=how)
    (first, *_) = warnings.stage_warnings(stage, 1)
    assert (first.code, first.text) == ("something else ran", "fp8 is all of it by Inductor, in fp16: 5 axes")
    plain = stage_record("fp8", steady_pair(2.0, b="fp8"), execution=Execution("fp8"))
    assert "something else ran" not in [warning.code for warning in warnings.stage_warnings(plain, 1)]


@pytest.mark.parametrize(
    ("dice", "said"),
    [
        ([0.98, 0.94], ""),
        ([0.83, 0.0], "a Dice of 0 for class 1, and of 0.83 for class 0"),
        ([0.98, 0.93, 0.015], "a Dice of 0.015 for class 2, and of 0.98 for class 0"),
        ([0.98, 0.3, 0.2], ""),
        ([0.3, 0.004, 1.0], "a Dice of 0.004 for class 1, and of 0.3 for class 0"),
    ],
)
def test_a_trained_network_that_finds_a_class_nowhere_is_in_doubt(dice: list[float], said: str) -> None:
    run = made_up.run()
    sizes = [[4, 4, int(score < 1)][: len(dice)] for score in dice[-1:]]  # a Dice of 1 is of a class that is absent
    found = made_up.accuracy(reference_dice=dice, counts=MaskCounts(8, [0], [0], sizes, sizes, sizes, sizes))
    stages = [replace(run.stages[0], accuracy=found), *run.stages[1:]]
    doubt = warnings.useless_reference(replace(run, stages=stages))
    assert (doubt.text if doubt else "").endswith(said)
    assert (doubt is not None) == bool(said)
    model = replace(run.config.model, checkpoint=None, trained=False)
    untrained = replace(run, stages=stages, config=replace(run.config, model=model))
    assert warnings.useless_reference(untrained) is None


CALL = SAMPLE_SECONDS / CALLS  # seconds that the made-up stage takes
BATCH = 2


def run_at(times_peak: float) -> RunRecord:
    """A run whose stage makes so many times the device's highest peak."""
    peaks = MeasuredPeaks({"fp32": 1.0, "fp16": 10.0}, 1e12, None, None, None)
    reference = made_up.run().reference
    flops = times_peak * 10e12 * CALL / BATCH
    record = run_record([stage_record("fast", steady_pair(1.5))])
    return replace(record, measured_peaks=peaks, reference=replace(reference, flops_per_image=int(flops)))


@pytest.mark.parametrize(("times_peak", "refused"), [(0.95, False), (2.9, False), (2.95, True), (1e4, True)])
def test_a_stage_may_not_beat_the_device(times_peak: float, refused: bool) -> None:
    """1.3 times the highest peak, after the most that a rewrite saves."""
    run = run_at(times_peak)
    found = within_physics(run, run.stages[0])
    assert pytest.approx(2.925) == ABOVE_PEAK * SAVED
    assert (found.status, found.failure) == (("inaccurate", "impossible") if refused else ("ok", None))
    assert ("impossible: its time in the samples makes" in found.reason) is refused
    assert (ranking(replace(run, stages=[found])).winner is None) is refused


def test_kernels_too_quick_for_the_measured_peaks_are_refused_on_a_gpu() -> None:
    run = replace(run_at(0.5), environment=made_up.environment())
    quick = replace(run.stages[0], profile=made_up.profile(CALL / 1e3))
    slow = replace(run.stages[0], profile=made_up.profile(CALL))
    assert "its kernels' time in the profile makes" in within_physics(run, quick).reason
    assert within_physics(run, slow).status == "ok"
    run = run_at(1e4)
    failed = replace(run.stages[0], status="failed", reason="its own")
    assert within_physics(replace(run, measured_peaks=None), run.stages[0]).status == "ok"
    assert within_physics(run, failed) == failed
