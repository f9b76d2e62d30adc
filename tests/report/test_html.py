"""The HTML page and what it must never do; results.csv's columns; what one part of a report says no other denies."""

import re
import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.attribution import Finding, largest_step, remaining, seen_share, steps
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.analysis.sweeps import Curve, Job, Lead, Rate
from pipeline.config.request_error import RequestError
from pipeline.records.data_words import IMAGES
from pipeline.records.diagnostics import CountedBytes, KernelRow, LayerTime, LayerWork, LayoutChange, Profile
from pipeline.records.goals import TaskName
from pipeline.records.run_record import Execution, RunRecord, RunWarning, StageRecord
from pipeline.records.samples import Accuracy, Block, HostPath, Pair
from pipeline.report import answer, csv_table, html, markdown
from pipeline.report.charts import VARIABLES
from pipeline.report.charts.bars import waterfall
from pipeline.report.formatting import method
from pipeline.report.html import page
from pipeline.report.sections import bits, bottleneck, cost, fusion, host, layout, memory, way
from pipeline.report.sections.ladder import ends, headings_of, ladder, stage_columns
from pipeline.report.sections.layout import searched
from pipeline.report.sections.stage import lines
from pipeline.report.slim_pages import points_of, write_pareto
from pipeline.report.sweep import knees, most_per_second, opening
from pipeline.report.tables import Section, Table, table_of
from pipeline.stats.intervals import Estimate, Ratio
from pipeline.stats.outcomes import Unresolved
from tests.analysis.made_up_nets import net, summarized
from tests.export.recorded import MACHINE, stage
from tests.made_up_request import asked
from tests.report import made_up_run as made_up

DOCUMENT = Path(__file__).parents[2] / "docs" / "results-csv.md"


def test_every_column_is_documented_in_its_place() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert documented == csv_table.rows(made_up.summary(made_up.run()))[0]


@cache
def whole() -> RunSummary:
    """A made-up run of which every table of stages has rows: it has a target, a path around the net and 8 bits."""
    asked = {"target_images_per_second": 400.0, "target_p99_ms": 300.0}
    run = made_up.with_settings(made_up.run(), report=asked)
    first, *others = run.stages
    counted, planned = CountedBytes(4, 2, 10, 9, 9, "ncu", {}), LayoutChange("Transpose", "up", "ONNX graph", 1.0, None)
    changed = replace(first.diagnostics, counted=counted, layout=[*first.diagnostics.layout, planned])
    return summarize(replace(run, stages=[replace(first, host_path=PATH, diagnostics=changed), *others, int8()]))


def int8() -> StageRecord:
    """A stage with 8 bits."""
    few = Execution("int8", {}, None, "ONNX Runtime", captured=False, fuses=True)
    return made_up.stage("int8", 9.0, 30.0, 10**9, "8 bits", execution=few)


PATH = [
    HostPath("as it is", [0.4], 100, 50),
    HostPath("uint8 in", [0.3], 100, 50),
    HostPath("classes out", [0.2], 100, 50),
    HostPath("ring", [0.1], 100, 50),
]
TABLES: dict[str, Callable[[RunSummary], Table | None]] = {
    "bottleneck": lambda summary: bottleneck.section(summary).table,
    "classes": lambda summary: next((drawn.table for drawn in way.classes_figures(summary)), None),
    "host time": lambda summary: table_of(host.columns(), host.lines(summary)),
    "around the net": lambda summary: host.path_section(summary).table,
    "layout": lambda summary: layout.section(summary).table,
    "fusion": lambda summary: fusion.section(summary).table,
    "memory": lambda summary: memory.section(summary).table,
    "cost": cost.cost_table,
    "GPUs for the target": lambda summary: cost.capacity(summary).table,
}


# that tables of every stage show as well, and so also have of those that a table leaves out
EVERY_STAGE = {
    column.csv for column in [*stage_columns(headings_of(whole())), *bottleneck.columns(whole().run.words)]
} | {"bottleneck"}


@pytest.fixture(scope="module")
def written() -> dict[str, dict[str, str]]:
    return {row["stage"]: row for row in made_up.csv_rows(whole())}


@pytest.mark.parametrize("name", TABLES)
def test_what_a_table_shows_of_a_stage_is_there(name: str, written: dict[str, dict[str, str]]) -> None:
    shown = TABLES[name](whole())
    assert shown is not None
    for cells in shown.rows:
        row = written[str(cells[0].value)]
        for column, cell in zip(shown.columns, cells, strict=True):
            assert not column.csv or row[column.csv] == ("" if cell.value is None else str(cell.value))
    named = [column.csv for column in shown.columns if column.csv]
    without = written.keys() - {str(cells[0].value) for cells in shown.rows}
    assert without
    assert named
    assert not any(written[stage][column] for stage in without for column in named if column not in EVERY_STAGE)


def test_the_figures_of_fewer_bits_are_there_of_every_stage(written: dict[str, dict[str, str]]) -> None:
    """The layers of those with 8 bits; what the file takes in bytes."""
    shown = bits.section(whole()).table
    found = {cells[0].value: dict(zip(shown.titles, cells, strict=True)) for cells in shown.rows}
    assert str(found["int8"]["layers"].value) == written["int8"]["layers_with_8_bits"]
    assert (written["int8"]["provider"], written["int8"]["precision"]) == ("ONNX Runtime", "int8")
    assert (written["compile"]["provider"], written["compile"]["precision"]) == ("Inductor", "fp16")
    assert (written["compile"]["layers_with_8_bits"], written["compile"]["file_bytes"]) == ("", "62000000")


def test_what_a_graph_plans_stands_beside_what_ran(written: dict[str, dict[str, str]]) -> None:
    shown = {cells[0].value: cells[1].text for cells in layout.section(whole()).table.rows}
    planned = {name: row["layout_changes_in_graph"] for name, row in written.items() if name in shown}
    assert any(count != "0" for count in planned.values())
    assert all(("in the graph" in shown[name]) == (count != "0") for name, count in planned.items())


@pytest.mark.parametrize("task", ["segmentation", "regression"])
def test_runs_that_know_little_have_the_same_columns(task: TaskName) -> None:
    known = made_up.with_settings(made_up.run(), task={"name": task})
    bare = made_up.with_settings(known, report={"gpu_hour_price": None})
    bare = replace(bare, stages=[], environment=None, measured_peaks=None, reference=None)
    asked = made_up.with_settings(known, report={"target_images_per_second": 400.0, "target_p99_ms": 300.0})
    first, *others = (csv_table.rows(summarize(run))[0] for run in (bare, known, asked))
    assert others == [first, first]


RUN = made_up.run()
GPU = made_up.beside_autocast()


class Reader(HTMLParser):
    """Collects what a browser would see: tags with their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


read = cache(Reader)


def test_nothing_in_the_page_has_an_address_outside_it() -> None:
    assert "http" not in made_up.page(RUN).replace("http-equiv", "")
    assert "@import" not in made_up.page(RUN)
    for tag, attributes in read(made_up.page(RUN)).tags:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name) or "#"
            beside = tag == "a" and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)+", value)
            assert value.startswith(("#", "data:image/")) or beside, (tag, value)


def test_what_a_record_holds_is_shown_and_never_run() -> None:
    reader = read(made_up.page(RUN))
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in reader.tags]
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert "<script>alert(1)</script>" in reader.text


def test_the_first_screen_answers() -> None:
    text = read(made_up.page(GPU)).text
    first = text[: text.index("Masks: is it still right?")]
    assert first.startswith("Use torch.compile: 1.6 × as fast as autocast, 0.0040 % of pixels change")
    assert "ONNX Runtime ties." in first
    assert "for 8 images, at steady state 7.55 ms" in first
    assert "1.52 GiB" in first
    assert "× host to host" in first
    assert "How do I use torch.compile? The run left compile/model.onnx" in first
    assert "NVIDIA H200" in first


def test_who_is_not_ranked_is_named_with_the_reason() -> None:
    text = read(made_up.page(RUN)).text
    assert "hung took too long: build took more than 1800 s" in text
    assert "Skipped: absent (needs a GPU)." in text
    assert "black gave a wrong answer: all logits are NaN" in text
    assert "100 % of its logits are NaN or infinite." in text
    assert "an empty (black) mask" in text


def test_the_winner_s_own_warnings_are_on_the_first_screen_and_others_of_wrong_answers() -> None:
    careful = RunWarning("unsteady", "its pace changed by 7%", "close other programs")
    grave = RunWarning("weights", "it holds its own", "leave them")
    given = {"compile": [careful], "half": [grave, careful]}
    run = replace(RUN, stages=[replace(stage, warnings=given.get(stage.name, stage.warnings)) for stage in RUN.stages])
    text = Reader(made_up.page(run)).text
    assert "weights**: it holds its own" in markdown.markdown(summarize(run)).partition("<details>")[0]
    first, rest = text.split("Masks: is it still right?")
    assert "unsteady : its pace changed by 7 % . What to do: close other programs." in first.replace("%.", "% .")
    assert "baseline restarted" not in first
    assert "baseline restarted" in rest


def test_an_unfinished_run_and_a_processor_s_are_called_that() -> None:
    cut = replace(RUN, stages=[*RUN.stages[:2], *made_up.unwell()[:2]], finished=False)
    said = "This run did not finish. Its stages so far: 2 measured, 1 failed and 1 timeout."
    assert said in Reader(made_up.page(cut)).text
    bare = RunRecord(RUN.started_at, RUN.command, RUN.config)
    assert "no stage is on record" in Reader(made_up.page(bare)).text
    machine = replace(made_up.environment(), device="cpu", device_name="a processor", cpu_threads=1)
    run = replace(RUN, config=replace(RUN.config, preset="cpu"), environment=machine, drift=-0.4)
    text = Reader(made_up.page(run)).text
    assert "the baseline took 40 % less time at the end than at the start" in text
    assert re.search(r"from host memory, pinned on a GPU, and back;.*; from host memory and back p50 ", text, re.DOTALL)
    assert re.search(r"CPU: a processor, 1 thread\b", text)
    assert "preset cpu: no GPU was used; these ratios do not apply to a GPU" in text
    assert "no GPU was used" not in read(made_up.page(RUN)).text
    assert "as fast as eager" in text


def test_every_chart_has_a_title_and_takes_the_page_s_colours() -> None:
    charts = re.findall(r"<svg.*?</svg>", made_up.page(RUN), flags=re.DOTALL)
    bars = re.findall(r'<div class="bars" role="img" aria-label="([^"]+)"', made_up.page(RUN))
    assert len(charts) == 4
    assert len(set(bars)) == len(bars) == 8
    for chart in charts:
        assert "<title>" in chart
        assert 'role="img"' in chart
        assert not re.search(r"#[0-9a-f]{6}\b", re.sub(r'(url\(|href=")#\w+', "", chart))
    assert set(VARIABLES.values()) <= {f"var({name})" for name in re.findall(r"(--[\w-]+):", made_up.page(RUN))}


def test_links_lead_somewhere_and_the_report_is_small_and_the_same_twice() -> None:
    tags = Reader(re.sub(r"<svg.*?</svg>", "", made_up.page(RUN), flags=re.DOTALL)).tags
    targets = {attributes.get("id") for _, attributes in tags}
    links = [str(attributes["href"]) for tag, attributes in tags if tag == "a"]
    assert len(links) > len(RUN.stages)
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= targets
    assert page(summarize(RUN)) == made_up.page(RUN)
    recorded = made_up.recorded()
    assert max(len(made_up.page(run).encode()) for run in (RUN, recorded)) < 3e6


def test_the_page_lets_nothing_run_but_its_own_script() -> None:
    reader = read(made_up.page(RUN))
    policy = next(attributes["content"] for tag, attributes in reader.tags if attributes.get("http-equiv"))
    script = re.search(r"<script>(.*?)</script>", made_up.page(RUN), flags=re.DOTALL)
    assert script
    assert policy
    assert f"script-src 'sha256-{b64encode(sha256(script[1].encode()).digest()).decode()}'" in policy
    assert "base-uri 'none'; form-action 'none'" in policy


def test_every_id_is_there_once_and_every_table_has_row_headers() -> None:
    reader = read(made_up.page(RUN))
    ids = [attributes["id"] for _, attributes in reader.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    rows = [attributes for tag, attributes in reader.tags if tag == "th" and attributes.get("scope") == "row"]
    assert len(rows) > len(RUN.stages)
    assert not any(attributes.get("tabindex") for _, attributes in reader.tags)
    assert not any("title" in attributes for tag, attributes in reader.tags if tag == "th")


def test_a_file_that_is_not_there_is_named_and_not_linked() -> None:
    found = made_up.summary(replace(RUN, stages=[RUN.stages[0], RUN.stages[7]]))
    there = Reader(page(found, present=lambda path: path.endswith("log.txt") or path == "check.py"))
    links = [
        str(attributes["href"]) for tag, attributes in there.tags if tag == "a" and "#" not in str(attributes["href"])
    ]
    assert links
    assert all(link.endswith("log.txt") or link == "check.py" for link in links)
    assert "compile/model.onnx" in there.text
    nowhere = Reader(page(found, present=lambda _: False))
    assert all(str(attributes["href"]).startswith("#") for tag, attributes in nowhere.tags if tag == "a")
    assert "in a plain loop" in there.text
    assert "in a plain loop" not in nowhere.text


SECTIONS = {section.anchor: section for section in markdown.explaining(whole())}
FORMS = cache(lambda: (html.page(whole()), markdown.markdown(whole())))


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_page_and_markdown_have_the_section(section: Section) -> None:
    in_html, text = FORMS()
    assert f'id="{section.anchor}"><summary><h3>{section.title}</h3>' in in_html
    in_markdown = bool(section.sentences) or (section.table_in_markdown and bool(section.table.rows))
    heading = f"<summary>{markdown.escape(section.title)}</summary>"
    assert (heading in text) == (in_markdown or section.gist_in_markdown)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_tables_have_a_cell_for_each_title_and_name_the_method_first(section: Section) -> None:
    figures = [*section.charts, *section.pairs, *section.others]
    for table in (section.table, *(figure.table for figure in figures if figure.table)):
        assert all(len(row) == len(table.titles) for row in table.rows)
        assert not table.rows or table.titles[0] in ("method", "step", "layer", "level")


def test_every_kind_of_section_is_looked_at() -> None:
    expected = {"way", "bottlenecks", "time", "around", "roofline-1", "layout", "fusion", "memory", "timelines", "bits"}
    assert expected <= SECTIONS.keys()


def test_the_ladder_of_a_run_without_any_ranked_stage_keeps_its_outcomes_as_text() -> None:
    unwell = made_up.run(stages=made_up.unwell())
    assert "× eager" in ladder(made_up.summary(RUN)).titles
    assert "× eager" not in ladder(made_up.summary(unwell)).titles
    page = made_up.page(unwell)
    start = page.index('id="ladder-table"')
    assert '<th scope="col" aria-sort="none" class="text"><button type="button">outcome<' in page[start : start + 3000]


def test_a_stage_that_is_not_ranked_sorts_last() -> None:
    summary = made_up.summary(made_up.run(stages=[RUN.stages[0], *made_up.unwell()]))
    shown = ladder(summary)
    *_, black = shown.rows
    pairs = zip(shown.columns, black, strict=True)
    assert {cell.value for column, cell in pairs if column.kind == "number"} == {None}
    assert black[0] == replace(black[0], value="black")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": "Tile(1)", "b": "Tile(2)", "c": "Tile(1)"}, ["a, c: Tile(1)", "b: Tile(2)"]),
        ({"fold_head": ["head"], "take_upsampling": []}, ["fold_head: head", "take_upsampling: none"]),
        ({"CUDAExecutionProvider": {"Conv": 19, "Relu": 18}}, ["CUDAExecutionProvider: Conv 19, Relu 18"]),
        (["x", "y"], ["x, y"]),
        ({}, ["none"]),
        (0, ["0"]),
        (False, ["false"]),
    ],
)
def test_a_detail_is_told_in_lines(value: Any, said: list[str]) -> None:
    """Entries with the same value share a line; what is empty says so, and what is 0 doesn't."""
    assert lines(value) == said


SWEPT = "python -m pipeline -m stage=half,compile data.batch_size=1,8"


def rough(pair: Pair, factor: float) -> Pair:
    """The pair with the stage so many times as slow in every second block."""

    def slowed(block: Block) -> Block:
        first, second = (
            replace(sample, seconds=factor * sample.seconds, device_seconds=factor * (sample.device_seconds or 0.0))
            for sample in block.stage
        )
        return replace(block, stage=(first, second))

    return replace(pair, blocks=[slowed(block) if at % 2 else block for at, block in enumerate(pair.blocks)])


def job(number: int, pair: Pair, batch: int, **fields: Any) -> Job:
    stage = made_up.stage(pair.stage, 1.0, 1.0, 10**9, "", pairs=[pair], energy=None)
    asked = replace(made_up.run(), stages=[stage], command=SWEPT, **fields)
    record: RunRecord = made_up.with_settings(asked, data={"batch_size": batch})
    return Job(Path(str(number)), summarize(record), "")


def pair(stage: str, baseline_seconds: float, seconds: float) -> Pair:
    return made_up.pair("eager", stage, (baseline_seconds, seconds))


def test_the_most_images_per_second_are_named_where_they_are_resolved() -> None:
    jobs = [job(0, pair("compile", 0.02, 0.010), 1), job(1, pair("compile", 0.05, 0.020), 8)]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    assert said.startswith("Most images per second: torch.compile at batch 8 (job 1), 400")
    first = Rate("1", "half", 8, Estimate(405.0, 404.0, 406.0), 0.01)
    cause = Unresolved("few blocks", 2, 0.01, 0.01, 0.1, 6)
    said = most_per_second(Lead(first, [], cause, SWEPT), IMAGES)
    assert "isn't resolved: half precision at batch 8 (job 1) (405) is the highest, and not shown to be." in said
    other = replace(made_up.environment(), device_name="NVIDIA L4")
    jobs = [job(0, pair("half", 0.04, 0.02), 8), job(1, pair("compile", 0.04, 0.016), 8, environment=other)]
    assert opening(jobs)[-1].endswith("They are different machines: compare no times.")


def test_what_no_ratio_resolves_is_not_named() -> None:
    """The stage and the baseline that it can't be told from stand there, why, and the command that measures longer."""
    jobs = [job(0, pair("half", 0.020, 0.0202), 1), job(1, rough(pair("half", 0.02, 0.015), 1.8), 8)]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    assert not any(line.startswith("Most images") for line in opening(jobs))
    assert said.startswith("Which gives the most images per second isn't resolved: eager at batch 8 (job 1) (400)")
    assert "and half precision at batch 8 (job 1) (382) can't be told apart. The interval is ±" in said
    assert said.endswith(
        "would resolve it. To measure longer: "
        "python -m pipeline -m stage=half,compile data.batch_size=1,8 measure=thorough"
    )


def test_a_baseline_without_samples_of_its_own_is_a_contender_all_the_same() -> None:
    few = pair("half", 0.020, 0.0198)
    alone = job(1, replace(few, blocks=few.blocks[:2]), 8).summary
    lost = made_up.stage("eager", 1.0, 1.0, 10**9, "", pairs=[], energy=None)
    record = replace(alone.run, stages=[lost, *alone.run.stages])
    jobs = [job(0, pair("half", 0.16, 0.1599), 1), Job(Path("1"), summarize(record), "")]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    assert "isn't resolved: half precision at batch 8 (job 1) (405), eager at batch 8 (job 1) (401)" in said


def test_those_that_can_t_be_told_apart_stand_in_the_order_of_their_rates() -> None:
    jobs = [job(at, rough(pair("half", 0.16, seconds), 1.3), 8) for at, seconds in enumerate((0.05, 0.041, 0.045))]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    places = [said.index(f"(job {at})") for at in (1, 2, 0)]
    assert places == sorted(places)


def test_a_baseline_that_drifted_over_a_job_leaves_its_rate_open() -> None:
    """500 and 400 images a second are apart, unless the machine itself went 30 % slower meanwhile."""
    first, second = pair("half", 0.04, 0.02), pair("compile", 0.04, 0.016)
    (said,) = [line for line in opening([job(0, first, 8), job(1, second, 8)]) if "per second" in line]
    assert said.startswith("Most images per second: torch.compile")
    (said,) = [line for line in opening([job(0, first, 8), job(1, second, 8, drift=0.3)]) if "per second" in line]
    assert "isn't resolved: torch.compile at batch 8 (job 1) (500) and half precision at batch 8 (job 0) (400)" in said


def test_what_the_intervals_or_a_drift_hide_is_not_named() -> None:
    """Batch 8 gives 95 % of the best by its middle, and between 80 and 110 % by its interval."""
    best, wide, narrow = Estimate(500.0, 498.0, 502.0), Estimate(475.0, 400.0, 550.0), Estimate(475.0, 470.0, 480.0)
    first = Estimate(100.0, 99.0, 101.0)
    for each, size, said in ((narrow, 512, "8 (95 %)"), (wide, None, "not resolved")):
        (row,) = knees([Curve("half", size, [(1.0, first), (8.0, each), (32.0, best)])], IMAGES).rows
        assert [cell.text for cell in row] == [f"half precision at {size or 'its own size'}", said, "500"]
    found = made_up.summary(DRIFTED)
    assert steps(found) == []
    (said,) = way.step_sentences(found)
    assert said.startswith("The saving of each step is unknown: the baseline drifted too far for times of ")
    assert way.way_figures(found) == []


DRIFTED = replace(RUN, drift=0.3)


def one_convolution(reach: float = 0.7) -> RunRecord:
    """A CPU's stage of one layer that reaches so much of the peak."""
    layer = LayerWork("conv", "Conv2d", "convs", 10**11, 4 * 10**6, 4 * 10**6, 9 * 10**6)
    return made_up.on_a_processor(net([layer], [LayerTime("conv", 1e-3 / reach, 1.0)], seconds=1.01e-3 / reach))


def test_a_processor_s_peaks_of_another_pace_name_no_bottleneck() -> None:
    """Where the baseline drifted or others used the processors, a share of the peak may come to twice the peak."""
    steady = one_convolution()
    assert summarized(steady).bottleneck.kind == "compute-bound"
    crowded = [replace(pair, taken_share=0.5) for pair in steady.stages[0].pairs]
    for found in (summarized(replace(steady, drift=-0.4)), summarized(steady, pairs=crowded)):
        assert (found.bottleneck.kind, found.bottleneck.reason) == ("unknown", "other pace")
        assert found.bottleneck.evidence.compute is None
        assert bottleneck.sentence(found).startswith("unknown: the machine's pace changed")
        assert seen_share(found) is None
    whole = made_up.summary(replace(steady, drift=-0.4))
    assert "Unknown of half precision: the machine's pace changed" in bottleneck.definition(whole)
    assert any(cost.share for cost in searched(made_up.summary(RUN)))
    assert not any(cost.share for cost in searched(made_up.summary(made_up.on_a_processor(DRIFTED))))


def test_a_program_under_one_name_passes_over_no_memory() -> None:
    found = summarized(one_convolution(0.4), profile=hiding(2.5e-3))
    assert (found.bottleneck.kind, found.bottleneck.reason) == ("unknown", "not profiled")
    assert remaining(replace(found, layers=[])) is None


def hiding(seconds: float) -> Profile:
    """One operator that holds all, and a small copy beside it."""
    kernels = [KernelRow("forward", "other", 1.0, seconds), KernelRow("aten::copy_", "copy", 1.0, seconds / 10)]
    return Profile(10, seconds, None, 2.0, kernels, None)


def tied(summary: RunSummary) -> RunSummary:
    """With the last rung but one on the way named a tie of the winner."""
    before = steps(summary)[-1].previous
    return replace(summary, ranking=replace(summary.ranking, ties=[before]))


def findings(summary: RunSummary) -> list[Finding]:
    return [step.finding for step in steps(summary)]


def test_no_step_leads_from_a_tie_to_the_winner_which_is_named() -> None:
    found = made_up.summary(RUN)
    same = tied(found)
    assert findings(found)[-1] != "no difference"
    assert findings(same) == [*findings(found)[:-1], "no difference"]
    alone = replace(same, ranking=replace(same.ranking, ties=[stage.name for stage in same.ranked]))
    assert largest_step(alone) is None
    [drawn] = way.way_figures(same)
    assert "hatched" in drawn.svg
    assert "hatched" not in waterfall([("a", 0.0, 2.0), ("+ b", 2.0, 1.0)], "ms")
    found = tied(made_up.summary(RUN))
    assert found.winner is not None
    tie, setup = answer.paragraph(replace(found, run=made_up.on_a_processor(RUN)))[:2]
    assert tie.endswith(" ties.")
    assert setup.startswith("Building takes ")
    _, host, after = answer.paragraph(made_up.summary(RUN))[:3]
    assert host.startswith("Including transfers to and from the GPU, torch.compile is ")
    assert after.startswith("Building takes ")
    assert f". {method(found.winner.name)} " in way.of_winner(found, found.winner)


def test_the_csv_has_no_interval_where_the_tables_have_none() -> None:
    extremes = Ratio(2.0, 1.0, 4.0, 3, doubt="few blocks")
    assert ends(extremes) == (None, None)
    assert ends(replace(extremes, doubt=None)) == (1.0, 4.0)
    few = made_up.stage("half", 2.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (0.1, 0.05), blocks=2)])
    (row,) = made_up.csv_rows(made_up.summary(replace(RUN, stages=[few])))
    assert (row["ratio_low"], row["ratio_high"], row["ratio"] != "") == ("", "", True)


FIGURES = Accuracy(0.0, 0.0, 1.0, 0.0, None, 0.0, False, None, None, None, None, 8)


def run_of(seconds: dict[str, float], dice: float | None) -> RunRecord:
    figures = replace(FIGURES, dice=None if dice is None else [0.99, dice])
    stages = [
        replace(stage(name), pairs=[made_up.pair("eager", name, (0.004, each), "cpu", blocks=2)], accuracy=figures)
        for name, each in seconds.items()
    ]
    return RunRecord("", "", asked(), MACHINE, stages=stages, finished=True, winner=next(iter(seconds)))


def test_what_is_slower_and_worse_is_not_ahead(tmp_path: Path) -> None:
    runs = [
        ("full", run_of({"eager": 0.004}, 0.95)),
        ("half", run_of({"eager": 0.001}, 0.94)),
        ("bad", run_of({"eager": 0.002}, 0.9)),
    ]
    found = points_of(runs)
    assert [(point.network, point.dice) for point in found] == [("full", 0.95), ("half", 0.94), ("bad", 0.9)]
    assert [[one.beats(other) for other in found] for one in found] == [[False] * 3, [False, False, True], [False] * 3]
    assert write_pareto(found, tmp_path).endswith(f"{tmp_path}/pareto.html\n")
    page = (tmp_path / "pareto.html").read_text()
    assert all(f"{name}, eager" in page for name, _ in runs)
    with warnings.catch_warnings(action="error"):  # of an axis without a length
        write_pareto(found[:1], tmp_path)


def test_runs_without_labels_or_of_other_batches_are_refused() -> None:
    full = run_of({"eager": 0.004}, 0.95)
    with pytest.raises(RequestError, match=r"slim: its images have no labels"):
        points_of([("full", full), ("slim", run_of({"eager": 0.001}, None))])
    other = replace(full, config=replace(full.config, data=replace(full.config.data, batch_size=7)))
    with pytest.raises(RequestError, match=r"slim: data.batch_size=7, where full has 2"):
        points_of([("full", full), ("slim", other)])
    with pytest.raises(RequestError, match=r"slim: SHA-256 of images and labels=ab, where full has None; measure both"):
        points_of([("full", full), ("slim", replace(full, data_sha256="ab"))])
