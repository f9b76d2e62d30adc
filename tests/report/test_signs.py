"""No report shows signs that a terminal obeys, or speaks of images to a net of volumes, or of masks without any."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline import compare as comparison
from pipeline.analysis import capacity, run_comparison
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.analysis.sweeps import Job
from pipeline.cli.progress import Progress, print_error
from pipeline.records import codec
from pipeline.records.data_words import IMAGES, MIXED, VOLUMES, words_for_all
from pipeline.records.diagnostics import BatchGrowth, Diagnostics, ImageGrowth
from pipeline.records.goals import AccuracyLimits, Goal, Task, TaskName
from pipeline.records.request import DataSpec
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Calibration, ImageSet
from pipeline.report import terminal
from pipeline.report import write as redraw
from pipeline.report.answer import headline, numbers
from pipeline.report.csv_table import csv_text
from pipeline.report.formatting import clean, readable, visible
from pipeline.report.html import environment, page
from pipeline.report.markdown import markdown
from pipeline.report.sections.accuracy import right
from pipeline.report.sections.bottleneck import in_short
from pipeline.report.sweep import sweep_csv, sweep_texts
from pipeline.report.terminal import first_screen
from pipeline.report.usage import usage
from pipeline.report.write import rejudged
from tests.report import made_up_run as made_up

CONTROL = "".join(map(chr, [*range(9), 11, 12, *range(14, 32), *range(127, 160)]))  # C0 and C1 without ends of line
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # UAX 9
HIDING = "\u200b\u2028\u2029\ufeff\U000e0041"
LINK = "\x1b]8;;http://elsewhere/\x1b\\click\x1b]8;;\x1b\\"  # OSC 8
MARKUP = "<script><img>"
HOSTILE = f"x\r\n```\n# y {MARKUP} {CONTROL}{TURNING}{HIDING}{LINK}"
SHOWN = re.compile(f"[{re.escape(CONTROL + TURNING + HIDING)}]")


@cache
def hostile_run() -> RunRecord:
    """The made-up run with `HOSTILE` at the end of every text that may be any."""
    run = made_up.run()
    plain = codec.to_json(replace(run, stages=[run.stages[at] for at in (0, 7, -1, -2)]))
    fixed: set[str] = {"started_at", "baseline", "first", "second"}
    for _ in range(30):
        try:
            return codec.from_json(RunRecord, spoilt(plain, fixed))
        except ValueError as error:
            fixed.add(re.findall(r"\.(\w+)", str(error))[-1])  # a fixed word is wanted there, as the path says
    raise AssertionError(f"no record can be made; fixed are {sorted(fixed)}")


def spoilt(value: Any, fixed: set[str], key: str = "") -> Any:
    """Plain JSON values with more at the end of their texts, but for those under a key of `fixed`."""
    if isinstance(value, dict):
        return {name: spoilt(part, fixed, name) for name, part in value.items()}
    if isinstance(value, list):
        return [spoilt(part, fixed, key) for part in value]
    return value + HOSTILE if isinstance(value, str) and key not in fixed else value


def job(run: RunRecord) -> Job:
    return Job(Path("0"), made_up.summary(run), HOSTILE)


def compared(run: RunRecord, form: Any) -> str:
    return form(run_comparison.compare(run, made_up.run()), run_comparison.differences(run, made_up.run()))


RENDERED = {
    "page": lambda run: page(made_up.summary(run)),
    "Markdown": lambda run: markdown(made_up.summary(run)),
    "CSV": lambda run: csv_text(made_up.summary(run)),
    "terminal": lambda run: made_up.printed(first_screen(made_up.summary(run))),
    "sweep's page": lambda run: sweep_texts([job(run)])[0],
    "sweep's Markdown": lambda run: sweep_texts([job(run)])[1],
    "sweep's CSV": lambda run: sweep_csv([job(run)]),
    "comparison": lambda run: compared(run, comparison.text),
    "comparison's Markdown": lambda run: compared(run, comparison.markdown),
}


@pytest.mark.parametrize("form", RENDERED)
def test_no_form_of_a_report_shows_them(form: str) -> None:
    found = SHOWN.search(text := RENDERED[form](hostile_run()))
    assert not found, text[max(0, found.start() - 80) : found.end() + 20].encode("unicode_escape")


@pytest.mark.parametrize("form", ["page", "Markdown", "sweep's page", "sweep's Markdown", "comparison's Markdown"])
def test_no_text_of_a_record_is_markup(form: str) -> None:
    text = RENDERED[form](hostile_run())
    text = text if "page" in form else re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)  # code is text
    assert text.count("<script>") == ("page" in form), "a page has its own"
    assert "<img>" not in text


def test_no_text_ends_a_block_of_code_in_markdown() -> None:
    assert "\n# y" not in RENDERED["Markdown"](hostile_run())


@pytest.mark.parametrize("there", [True, False])
def test_no_path_on_a_page_shows_them(there: bool) -> None:
    shown = environment().from_string("{{ path | file }}").render(path=HOSTILE, present=lambda _: there)
    assert not SHOWN.search(shown)


def test_every_sign_has_its_answer() -> None:
    for sign in CONTROL + TURNING + HIDING + "\r":
        assert visible(f"a{sign}b") == "a b"
        assert clean(f"a{sign}b") == "a b"
        assert readable(f"a{sign}b") == "a\ufffdb"


def test_progress_and_error_lines_hold_none(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1) as progress:
        progress.stage_started(HOSTILE, HOSTILE)
        progress.phase_entered(HOSTILE, HOSTILE, HOSTILE)
    print_error(HOSTILE)
    assert not SHOWN.search(capsys.readouterr().err)


def test_a_bad_record_is_told_of_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / f"run{LINK.replace('/', '')}"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"schema_version": 5, HOSTILE: HOSTILE}))
    assert redraw.main([str(folder)]) == 2
    assert comparison.main([str(folder), str(folder)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 2
    assert not SHOWN.search(said.err + said.out)


OF_IMAGES = re.compile(r"(?<![\w./])(images?|pixels?)(?![\w.])", re.IGNORECASE)
UNSEEN = re.compile(r"<style.*?</style>|<script.*?</script>|<pre>.*?</pre>", re.DOTALL)  # the config among them


def of_volumes(run: RunRecord, dims: int | None = 3) -> RunRecord:
    """The run, of a net whose input has so many spatial dimensions."""
    reference = replace(run.reference, spatial_dims=dims, labels="a threshold")
    named = made_up.with_settings(run, data={"name": "volume" if dims == 3 else "samples", "depth": None})
    return replace(named, reference=reference)


def with_goal(objective: Any) -> RunRecord:
    run = made_up.run()
    return replace(run, config=replace(run.config, goal=Goal(objective)))


def ill_and_calibrated() -> RunRecord:
    """Warnings with figures, scales from some data, and a stage of 8 bits."""
    run = made_up.run()
    chosen = Calibration(ImageSet(32, ["a", "b"]), ImageSet(24, ["c"]), choice_apart=True, apart=True)
    first = replace(run.stages[0], diagnostics=Diagnostics(growth=BatchGrowth([1, 8], [0.010, 0.200])))
    eight = replace(run.stages[7], calibration=chosen, execution=replace(made_up.execution("fp8"), precision="fp8"))
    reference = replace(run.reference, batch_relative_l2=0.1)
    return replace(run, stages=[first, *run.stages[1:7], eight], reference=reference)


def of_a_cpu() -> RunRecord:
    grown = Diagnostics(image_growth=ImageGrowth([64, 256], [0.010, 0.011]))
    stages = [
        made_up.stage(name, ratio, 0.1, 10**9, "", device="cpu", diagnostics=grown, energy=None)
        for name, ratio in (("eager", 1.0), ("half", 2.0))
    ]
    machine = replace(made_up.environment(), device="cpu")
    return made_up.run(stages=stages, environment=machine, config=replace(made_up.run().config, preset="cpu"))


PRICED = {"gpu_hour_price": 3.0, "target_images_per_second": 500.0, "target_p99_ms": 900.0}
RUNS: dict[str, Callable[[], RunRecord]] = {
    "a whole ladder": made_up.run,
    "random weights": lambda: made_up.with_settings(made_up.run(), model={"checkpoint": None}),
    "regression": lambda: replace(
        made_up.run(), config=replace(made_up.run().config, task=Task("regression")), stages=made_up.run().stages[:4]
    ),
    "the least energy": lambda: with_goal("energy"),
    "the least cost": lambda: with_goal("cost"),
    "a price and a target": lambda: made_up.with_settings(made_up.run(), report=PRICED),
    "warnings and scales": ill_and_calibrated,
    "a CPU": of_a_cpu,
    "stages that left no file": lambda: made_up.run(
        stages=[replace(stage, artefacts=[]) for stage in made_up.run().stages]
    ),
    "the baseline alone": lambda: made_up.run(stages=made_up.run().stages[:1]),
    "limits of accuracy": lambda: rejudged(of_volumes(made_up.run()), AccuracyLimits(min_agreement=0.999999)),
}


def rendered(form: str, run: RunRecord) -> str:
    return UNSEEN.sub("", RENDERED[form](run)).replace(run.command, "")


@pytest.mark.parametrize("what", RUNS)
def test_no_form_of_a_report_of_volumes_speaks_of_images(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "ARRIVALS", 5_000)  # the words are the same, however well a p99 is known
    run = of_volumes(RUNS[what]())
    for form in RENDERED:
        found = OF_IMAGES.search(text := rendered(form, run))
        assert not found, f"{form}: {text[max(0, found.start() - 80) : found.end() + 40]}"
    assert "volumes/s" in rendered("Markdown", run)


def test_of_images_it_does() -> None:
    """By the same search, so that the other test can fail; an unknown rank is taken for images'."""
    for dims in (2, None):
        run = of_volumes(made_up.run(), dims)
        assert all(OF_IMAGES.search(rendered(form, run)) for form in ("page", "Markdown", "sweep's page"))
        assert "images/s" in rendered("Markdown", run)


def test_sentences_of_volumes() -> None:
    run = of_volumes(made_up.run())
    summary = made_up.summary(run)
    assert "of voxels change" in headline(summary)
    assert summary.winner is not None
    assert "of voxels change class" in right(summary.winner)
    assert "on 24 volumes" in right(summary.winner)
    text = rendered("terminal", run)
    assert "for 8 volumes" in text
    assert "that convert NCDHW to NDHWC or back" in rendered("page", run)
    grown = made_up.summary(of_volumes(of_a_cpu())).stages[0]
    assert "a quarter of each volume" in in_short(grown)


def test_runs_of_both_kinds_have_words_for_both_and_the_csv_the_same_columns() -> None:
    volumes, images = (RENDERED["CSV"](run).splitlines()[0] for run in (of_volumes(made_up.run()), made_up.run()))
    assert volumes == images
    assert "images_per_second" in images
    assert words_for_all([]) is IMAGES
    assert words_for_all([VOLUMES, VOLUMES]) is VOLUMES
    assert words_for_all([IMAGES, VOLUMES]) is MIXED


WORDS = (r"\bmasks?\b", r"\bdice\b", "pixels? (that )?change", "changes? (its |their )?class", "argmax", "flipped")
OF_MASKS = re.compile("|".join(WORDS), re.IGNORECASE)
FIGURES: dict[TaskName, dict[str, object]] = {
    "regression": {"psnr": 61.25, "truth_psnr": 30.5, "reference_truth_psnr": 30.75},
    "diffusion": {"step_errors": [0.001, 0.002, 0.0042]},
}


def without_masks(stage: StageRecord, task: TaskName) -> StageRecord:
    masks = ("flipped_share", "flipped_margin", "one_class", "dice", "iou", "reference_dice", "reference_iou")
    own: dict[str, object] = {**dict.fromkeys(masks), **FIGURES[task]}
    return replace(stage, accuracy=replace(stage.accuracy, **own))


@cache
def summary_of(task: TaskName, trained: bool = True) -> RunSummary:
    run: RunRecord = made_up.run()
    model = replace(run.config.model, checkpoint="weights.pt" if trained else None)
    data = DataSpec("tensors", "inputs.safetensors", batch_size=8)
    settings = replace(run.config, task=Task(task, steps=3), model=model, data=data)
    stages = [without_masks(stage, task) if stage.accuracy else stage for stage in run.stages]
    return summarize(replace(run, config=settings, stages=stages, warnings=[], command="python -m pipeline"))


@pytest.mark.parametrize("task", FIGURES)
def test_no_view_speaks_of_masks(task: TaskName) -> None:
    shown = summary_of(task)
    drawn = re.sub(r"<(style|script).*?</\1>|<summary>Config.*?</pre>", "", page(shown), flags=re.DOTALL)
    views = {
        "page": re.sub(r"<[^>]*>", " ", drawn),
        "markdown": markdown(shown),
        "terminal": made_up.printed(terminal.first_screen(shown), 160),
        "csv": csv_text(shown),
        "usage": "".join(usage(shown, stage).code for stage in shown.stages),
    }
    for name, text in views.items():
        found = OF_MASKS.search(text)
        assert found is None, f"{name}: …{text[max(0, found.start() - 80) : found.end() + 80]}…"


@pytest.mark.parametrize(
    ("task", "said", "column", "value"),
    [
        ("regression", "PSNR 61.2 dB against fp32", "PSNR dB", "61.2 dB"),
        ("diffusion", "its final latents are 0.0042 off (relative L2)", "final error", "0.0042"),
    ],
)
def test_each_view_gives_the_task_s_figures(task: TaskName, said: str, column: str, value: str) -> None:
    for trained in (True, False):
        summary = summary_of(task, trained)
        assert said in headline(summary)
        assert any(number.value == value for number in numbers(summary))
        assert numbers(summary)[2].note == "on 24 images, against fp32"
    text = markdown(summary_of(task))
    assert column in text
    assert {"regression": "dB against what is right (fp32 network 30.8 dB)", "diffusion": "after 3 steps"}[task] in text
    named = {"regression": "psnr_db,truth_psnr_db,psnr_drop_db", "diffusion": "final_relative_l2"}[task]
    assert named in csv_text(summary_of(task)).splitlines()[0]
