"""Terminal, Markdown, CSV, the figures as text, and the sentences of the waterfall."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from pipeline.analysis.attribution import steps
from pipeline.analysis.attribution import way as way_to_winner
from pipeline.records.diagnostics import Diagnostics, KernelRow, Profile, TimeSplit
from pipeline.records.run_record import RunRecord, RunWarning, StageRecord
from pipeline.report import formatting
from pipeline.report.markdown import escape
from pipeline.report.run_text import all_warnings, grave_warnings
from pipeline.report.sections.way import sentence
from pipeline.report.terminal import first_screen, outcome_line
from pipeline.stats.intervals import Ratio
from pipeline.stats.outcomes import Noise
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

RUN = made_up.run()
GPU = made_up.beside_autocast()


def printed(width: int = 80, terminal: bool = False, run: RunRecord = GPU) -> str:
    return made_up.printed(first_screen(made_up.summary(run)), width, terminal)


def test_the_first_screen_fits_80_columns_and_has_no_colour_off_a_terminal() -> None:
    text = printed()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "\x1b[" in printed(terminal=True)
    assert "\x1b[31m &" not in printed(terminal=True)


def test_a_narrow_terminal_loses_no_column_of_the_ladder_and_no_reason() -> None:
    narrow, wide = (printed(width=width).splitlines() for width in (60, 80))
    rows = [line.rstrip() for line in wide if line.lstrip("▸= ").startswith(("stage", "compile ", "half", "tf32"))]
    assert len(rows) >= 4
    assert not any(line.endswith("…") for line in narrow)
    assert set(rows) <= {line.rstrip() for line in narrow}
    assert any(line.startswith("  To use it: ") and len(line) <= 60 for line in narrow)


def test_an_advised_command_can_be_copied_from_a_terminal() -> None:
    long = f"python -m pipeline data.path={'a' * 90} data.batch_size=8"
    seconds = made_up.BASELINE_SECONDS, made_up.BASELINE_SECONDS / 2
    few = replace(RUN.stages[4], pairs=[made_up.pair("eager", "half", seconds, blocks=2)])
    assert f"  {long} measure=thorough\n" in printed(60, run=made_up.run(stages=[few], command=long))


def test_the_first_screen_answers_first() -> None:
    text = " ".join(printed().split())
    said = ("Use torch.compile: 1.6 × as fast as autocast", "▸ compile", "skipped: absent")
    places = [text.index(each) for each in said]
    assert places == sorted(places)
    assert len(printed().splitlines()) <= 39
    assert "To use it: compile/model.onnx" in text


@pytest.mark.parametrize(
    ("index", "line"),
    [
        (7, r"compile: 10\.8\d × eager \[10\.\d\d, 10\.\d\d\], faster; 7\.\d\d ms per call"),
        (10, r"hung: timeout: build took more than 1800 s"),
        (11, r"absent: skipped: needs a GPU"),
    ],
)
def test_a_stage_s_outcome_is_a_line(index: int, line: str) -> None:
    assert re.fullmatch(line, outcome_line(RUN, RUN.stages[index]))


def test_markdown_is_a_table_that_no_text_breaks() -> None:
    lines = made_up.as_markdown(RUN).splitlines()
    start = lines.index("<summary>The ladder</summary>")
    table = [line for line in lines[start : lines.index("</details>", start)] if line.startswith("|")]
    assert len(table) == sum(stage.status != "skipped" for stage in RUN.stages) + 2
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "<script" not in made_up.as_markdown(RUN)


def test_csv_holds_plain_numbers_and_no_formula() -> None:
    sly = replace(RUN, stages=[changed(RUN.stages[0], adds="=HYPERLINK(0)"), *RUN.stages[1:]])
    rows = made_up.csv_rows(made_up.summary(sly))
    assert [row["stage"] for row in rows] == [stage.name for stage in RUN.stages]
    assert rows[0]["adds"] == "'=HYPERLINK(0)"
    assert float(rows[7]["ratio"]) == pytest.approx(10.8, abs=0.1)
    assert float(rows[7]["ratio_low"]) < float(rows[7]["ratio"]) < float(rows[7]["ratio_high"])
    assert rows[10]["ratio"] == ""
    assert rows[12]["status"] == "inaccurate"
    assert float(rows[12]["ratio"]) > 0
    assert [stage.status for stage, row in zip(sly.stages, rows, strict=True) if row["outcome"]] == ["ok"] * 9


def test_the_way_to_the_winner_adds_up_and_says_why() -> None:
    way = steps(made_up.summary(RUN))
    assert [step.name for step in way] == ["tf32", "channels_last", "amp", "half", "compile"]
    assert all(one.after == other.before for one, other in pairwise(way))
    assert re.search(r"convolution −29\.\d ms \(9 → 9 launches\)", sentence(way[0]))
    assert sentence(way[4]).startswith("half precision → torch.compile: −3.9")
    assert way_to_winner(made_up.summary(RUN))[1] == ["torchscript", "cuda_graph"]
    near = replace(RUN, stages=[RUN.stages[4], RUN.stages[6]])
    assert "cannot tell the two apart" in sentence(steps(made_up.summary(near))[0])


def test_a_winner_told_by_its_own_samples_is_explained_where_the_profiler_sees() -> None:
    """However far the baseline differs from itself in other processes, so that no stage's time is another's."""
    summary = made_up.summary(RUN)
    noisy = replace(summary, ranking=replace(summary.ranking, noise=Noise(50.0)))
    [step] = steps(noisy)
    assert (step.previous, step.name) == ("eager", "compile")
    assert "cannot tell the two apart" not in sentence(step)
    hidden = replace(RUN.stages[1], profile=made_up.profile(1e-5))
    found = made_up.summary(replace(RUN, stages=[RUN.stages[0], hidden]))
    assert "The reason is unknown: the profiler sees only" in sentence(steps(found)[0])
    bare = made_up.summary(replace(RUN, stages=[RUN.stages[0], replace(hidden, profile=None)]))
    assert "tf32 has no profile" in sentence(steps(bare)[0])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formatting.seconds(0.00754), "7.54 ms"),
        (formatting.seconds(142.0), "142 s"),
        (formatting.seconds(600.0), "10.0 min"),
        (formatting.seconds(None), "–"),
        (formatting.size(2**30), "1.00 GiB"),
        (formatting.share(4e-5), "0.0040 %"),
        (formatting.significant(float("nan")), "nan"),
        (formatting.significant(1234567.0), "1,230,000"),
        (formatting.samples(2.34e6), "2.3 million"),
        (formatting.times(Ratio(1.8412, 1.838, 1.844, 30)), "1.841 ×"),
        (formatting.interval(Ratio(10.8, 10.72, 10.91, 30)), "[10.72, 10.91]"),
        (formatting.clean("a\x1b[2J\nb"), "a [2J b"),
    ],
)
def test_figures_in_words(shown: str, expected: str) -> None:
    assert shown == expected


def idling(at: int, seconds: float, busy: float) -> StageRecord:
    """A made-up stage whose kernels take 5 ms, `busy` of the seconds that a call takes under the profiler."""
    split = TimeSplit(seconds, busy * seconds, 3e-4, 9e-4, 4e-4, 0.0)
    return replace(RUN.stages[at], profile=made_up.profile(5e-3), diagnostics=Diagnostics(split=split))


def test_a_step_s_idle_time_is_named() -> None:
    """Where kernels take the same and the call less, what went is idle time; its figures are the profiles' own."""
    half, graph = idling(4, 2.5e-2, 0.2), idling(7, 1e-2, 0.5)  # 11.5 ms and 7.5 ms a call
    said = sentence(steps(made_up.summary(replace(RUN, stages=[half, graph])))[0])
    assert re.search(r"By the profile: no class of work changed by much; the rest, −3\.9\d ms, while", said)
    assert said.endswith("under the profiler the GPU idles for 50 % of the time instead of 80 %.")
    cpu = replace(made_up.profile(7e-3), busy_share=None)
    bare = [replace(RUN.stages[at], profile=cpu, diagnostics=None) for at in (4, 7)]
    processor = sentence(steps(made_up.summary(replace(RUN, stages=bare)))[0])
    assert "doesn't explain it: no class of work changed by much." in processor
    assert "idle" not in processor


def kernels(**milliseconds: float) -> Profile:
    """A profile of one kernel for each class, "_" standing for a space."""
    rows = [KernelRow(kind, kind.replace("_", " "), 2.0, 1e-3 * took) for kind, took in milliseconds.items()]  # type: ignore[arg-type]
    return Profile(5, 1e-2, 0.98, 10.0, rows, None)


def one_step(before: Profile, after: Profile, at: tuple[int, int]) -> str:
    """What is said of a step between two made-up stages with these profiles."""
    stages = [replace(RUN.stages[index], profile=part) for index, part in zip(at, (before, after), strict=True)]
    return sentence(steps(made_up.summary(replace(RUN, stages=stages)))[0])


def test_a_class_is_named_by_the_later_stage_s_time_too() -> None:
    """Of 59 ms that went, 3 ms that came are little; of the 22.6 ms that are left they are much."""
    before = kernels(convolution=75.0, pointwise=6.5)
    said = one_step(before, kernels(convolution=13.0, pointwise=6.5, layout_change=3.0), (0, 1))
    assert "layout change +3.00 ms (0 → 2 launches)" in said
    assert "pointwise" not in said
    few = one_step(before, kernels(convolution=15.5, pointwise=6.5, layout_change=0.5), (0, 1))
    assert "layout change" not in few


@pytest.mark.parametrize(
    ("after", "explained"),
    [
        ({"convolution": 11.0, "pointwise": 7.1}, True),  # −2.5 ms of the −5.6 ms that went
        ({"convolution": 12.3, "pointwise": 7.1}, False),  # no more than −1.2 ms of them
        ({"convolution": 14.0, "pointwise": 7.1}, False),  # it took longer by the profile
        ({"convolution": 1.0, "pointwise": 6.9}, False),  # by the profile, more than twice as much went
    ],
)
def test_a_step_that_the_profile_doesn_t_explain_says_so(after: dict[str, float], explained: bool) -> None:
    said = one_step(kernels(convolution=13.5, pointwise=7.1), kernels(**after), (2, 3))
    assert ("By the profile: " in said) == explained
    assert ("The profile doesn't explain it: convolution " in said) != explained
    assert ("the rest" in said) == explained


def test_a_warning_of_many_stages_is_given_once() -> None:
    """With the winner's figures, where it is one of them; two stages' stay two, and the run's own come first."""
    same = RunWarning("throttled", "power: in 7 %", "cool the device")
    other = RunWarning("outliers", "4 of 60", "end what else runs")
    stages = [replace(stage, warnings=[same, other] if at < 2 else [same]) for at, stage in enumerate(RUN.stages[:6])]
    run = made_up.run(stages=stages, warnings=[RunWarning("busy processor", "load 3", "wait")], aa_pairs=[])
    found = made_up.summary(run)
    said = [(who, it.text) for who, it in all_warnings(found) if it.code in ("busy processor", "throttled", "outliers")]
    assert found.ranking.winner == "half"
    assert re.search(r"\n! busy processor: load 3\n! \d warnings more", printed(run=run))
    assert said == [
        ("the run", "load 3"),
        ("eager, eager (TF32), eager (channels-last) and 3 more", "half precision: power: in 7 %"),
        ("eager", "4 of 60"), ("eager (TF32)", "4 of 60"),
    ]  # fmt: skip


def test_a_grave_warning_of_many_stages_is_given_once() -> None:
    """All share one that the winner doesn't have; its own stands elsewhere."""
    few = RunWarning("few pictures", "judged on 1", "give more")
    stages = [replace(stage, warnings=[] if stage.spec.name == "half" else [few]) for stage in RUN.stages[:6]]
    of_run, found = grave_warnings(made_up.summary(made_up.run(stages=stages, aa_pairs=[], drift=3.7)))
    assert found == ("eager, eager (TF32), eager (channels-last) and 2 more", few)
    assert (of_run[0], of_run[1].code) == ("the run", "unfair")


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (
            Ratio(1.0, 0.9, 1.1, 4, doubt="few blocks"),
            "4 blocks are too few for an interval, which takes 6. The shortest mea",
        ),
        (Ratio(1.0, 0.9, 1.1, 1, doubt="few blocks"), "1 block is too few for an interval"),
        (Ratio(2.0, 0.1, 30.0, 12, doubt="baseline drifted", amount=1.757), "drifted by 480 % while it was measured, "),
        (Ratio(1.02, 1.015, 1.025, 30), "is below the minimum detectable effect of 3.0 %: measure.trials=3 averages"),
        (Ratio(1.0, 0.98, 1.02, 30), "about 480 blocks (now 30)"),
    ],
)
def test_what_would_resolve_a_ratio_is_said_with_figures(ratio: Ratio, said: str) -> None:
    assert said in formatting.remedy(Noise(0.03).unresolved(ratio))


def test_markdown_notifies_nobody_and_links_nowhere() -> None:
    """A name behind an @, a number behind a # and an address of a record stay text where a forge shows them."""
    said = escape("ask @someone about #12 at https://a.example or www.a.example")
    assert "@someone" not in said
    assert not re.search(r"#\d", said)
    assert "https:/" not in said
    assert "www." not in said
