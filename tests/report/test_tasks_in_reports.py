"""A run of a net without masks: every view gives its own figures, and none says anything of masks."""

import io
import re
from dataclasses import replace
from functools import cache

import pytest
from rich.console import Console, RenderableType

from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records.goals import Task, TaskName
from pipeline.records.request import DataSpec
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Accuracy
from pipeline.report import html, markdown, terminal
from pipeline.report.answer import headline, numbers
from pipeline.report.csv_table import csv_text
from pipeline.report.usage import usage
from tests.report import made_up_run as made_up

WORDS = (r"\bmasks?\b", r"\bdice\b", "pixels? (that )?change", "changes? (its |their )?class", "argmax", "flipped")
OF_MASKS = re.compile("|".join(WORDS), re.IGNORECASE)
FIGURES: dict[TaskName, dict[str, object]] = {
    "regression": {"psnr": 61.25, "truth_psnr": 30.5, "reference_truth_psnr": 30.75},
    "diffusion": {"step_errors": [0.001, 0.002, 0.0042]},
}


def printed(shown: RenderableType) -> str:
    """What a terminal would show."""
    console = Console(width=160, file=io.StringIO())
    with console.capture() as caught:
        console.print(shown)
    return caught.get()


def without_masks(stage: StageRecord, task: TaskName) -> StageRecord:
    masks = ("flipped_share", "flipped_margin", "one_class", "dice", "iou", "reference_dice", "reference_iou")
    own: dict[str, object] = {**dict.fromkeys(masks), **FIGURES[task]}
    assert stage.accuracy is not None
    found: Accuracy = replace(stage.accuracy, **own)  # type: ignore[arg-type]
    return replace(stage, accuracy=found)


@cache
def summary_of(task: TaskName, trained: bool = True) -> RunSummary:
    run: RunRecord = made_up.run()
    model = replace(run.config.model, checkpoint="weights.pt" if trained else None)
    data = DataSpec("tensors", "inputs.safetensors", batch_size=8)
    settings = replace(run.config, task=Task(task, steps=3), model=model, data=data)
    stages = [without_masks(stage, task) if stage.accuracy else stage for stage in run.stages]
    return summarize(replace(run, config=settings, stages=stages, warnings=[], command="python -m pipeline"))


def test_the_first_screen_counts_what_the_run_calls_its_data() -> None:
    assert numbers(summary_of("regression"))[2].note == "on 24 images, against fp32"


@pytest.mark.parametrize("task", FIGURES)
def test_no_view_speaks_of_masks(task: TaskName) -> None:
    summary = summary_of(task)
    shown = summary
    page = re.sub(r"<(style|script).*?</\1>|<summary>Config.*?</pre>", "", html.page(shown), flags=re.DOTALL)
    views = {
        "page": re.sub(r"<[^>]*>", " ", page),
        "markdown": markdown.markdown(shown),
        "terminal": printed(terminal.first_screen(shown)),
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
    text = markdown.markdown(summary_of(task))
    assert column in text
    assert {"regression": "dB against what is right (fp32 network 30.8 dB)", "diffusion": "after 3 steps"}[task] in text
    named = {"regression": "psnr_db,truth_psnr_db,psnr_drop_db", "diffusion": "final_relative_l2"}[task]
    assert named in csv_text(summary_of(task)).splitlines()[0]
