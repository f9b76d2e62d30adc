"""Every rule of the recommendations is tripped by a run made for it, and silent on one that gives it no cause."""

import ast
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any, get_args

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.analysis import recommendations as rules
from pipeline.analysis.recommendations import Code, Recommendation, recommendations
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import retyped
from pipeline.cli.arguments import hydra_words, parse
from pipeline.cli.messages import known_keys
from pipeline.config import load
from pipeline.records.diagnostics import Diagnostics, LayoutChange, TimeSplit
from pipeline.records.request import RunConfig
from pipeline.records.run_record import CompileFacts, Precision, RunRecord
from pipeline.report.sections.recommendation import FORMATS, TEXTS, recommendation_texts, worded
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

CONF, ROOT = (Path(__file__).resolve().parents[2] / name for name in ("conf", "pipeline"))
Rule = Callable[[Any, StageSummary], Recommendation | None]


def run_with(winner: dict[str, Any] | None = None, **fields: Any) -> RunRecord:
    """The made-up run with the winner's record changed; compile wins there, with onnxruntime beside it."""
    whole = made_up.run(**fields)
    stages = [changed(stage, **(winner or {})) if stage.name == "compile" else stage for stage in whole.stages]
    return replace(whole, stages=stages)


def said_by(rule: Rule, run: RunRecord) -> Any:
    found = made_up.summary(run)
    assert found.winner is not None
    return rule(found, found.winner)


def noisy() -> list[Any]:
    """A/A pairs that lie 5 % apart: differences of that size aren't claimed."""
    seconds = made_up.BASELINE_SECONDS
    return [made_up.pair("eager", f"control {number}", (seconds, seconds * 1.05)) for number in range(5)]


def unresolved() -> RunRecord:
    """One stage, 0.2 % from the baseline, in which the interval says nothing."""
    seconds = made_up.BASELINE_SECONDS
    near = made_up.stage(
        "half", 1.03, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (seconds, seconds / 1.03), blocks=4)]
    )
    return made_up.with_settings(made_up.run(stages=[near]), plan={"sampling_seconds": 6.0})


COPYING: dict[str, Any] = {"latencies": [0.005] * 100, "host_latencies": [0.009] * 100}
RECOMPILED = CompileFacts(recompile_reasons=["size mismatch"] * 3)
IDLING: dict[str, Any] = {  # of the 7.55 ms that compile takes
    "profile": made_up.profile(0.00418),
    "diagnostics": Diagnostics(split=TimeSplit(7.6e-3, 4.18e-3, 3e-4, 9e-4, 4e-4, 0.0)),
}


def half_wins(**fields: Any) -> RunRecord:
    """Only eager and half, which shows its layers, with half's record changed."""
    stages = made_up.run().stages
    return made_up.run(stages=[stages[0], changed(stages[4], **fields)])


def bytes_bound(precision: Precision) -> RunRecord:
    """A stage of that precision wins on a device that computes faster than it remembers."""
    run = half_wins(execution=replace(made_up.execution("half"), precision=precision), name="mine")
    return replace(run, measured_peaks=replace(run.measured_peaks, bandwidth_bytes_per_s=0.5e12))


def of_many_channels() -> RunRecord:
    """Half wins, whose first layer reads eight channels."""
    run = half_wins()
    first, *others = run.reference.layers
    return replace(run, reference=replace(run.reference, layers=[replace(first, in_channels=8), *others]))


def near_full(**tflops: float) -> RunRecord:
    """Half wins at 70 % of a low fp16 peak."""
    run = half_wins(profile=made_up.profile(0.0115, ("matmul", "convolution", "pointwise")))
    return replace(run, measured_peaks=replace(run.measured_peaks, tflops={"fp16": 385.0, **tflops}))


TRIPPED: dict[str, tuple[Rule, RunRecord, str, str]] = {
    "noisy": (rules.quiet_the_machine, run_with(aa_pairs=noisy()), "data.batch_size=8", "differs by up to"),
    "tie": (rules.take_the_quicker_build, made_up.run(), "stage=onnxruntime", "ties"),
    "idle": (rules.capture_a_graph, run_with(IDLING), "stage=compile_graph", "45 %"),
    "recompiled": (rules.compile_for_all_shapes, run_with({"compile_facts": RECOMPILED}), "dynamic=true", "3 times"),
    "broken": (
        rules.mend_graph_breaks,
        run_with({"compile_facts": CompileFacts(graph_breaks={"print": 1})}),
        "stage.fullgraph=true",
        "1 graph break",
    ),
    "empty": (
        rules.enlarge_the_batch,
        run_with(measured_peaks=replace(made_up.run().measured_peaks, tflops={"fp16": 5000.0})),
        "data.batch_size=16",
        "fp16 peak",
    ),
    "untuned": (rules.tune_longer, run_with({"options": {"mode": "default"}}), "stage=compile_max", "27"),
    "copies": (rules.shrink_the_copies, run_with(COPYING), "non_blocking", "23.1"),
    "bytes of fp32": (rules.lower_the_bytes, bytes_bound("tf32"), "stage=half", "with elements of 4 bytes"),
    "bytes": (rules.lower_the_bytes, bytes_bound("fp16"), "stage=compile", "near the bandwidth; every layer"),
    "fp8": (rules.try_fp8, near_full(fp8=1400.0), "stage=fp8", "3.4 times as high"),
    "first layer": (rules.mind_the_first_layer, half_wins(), "stage=fused", "encoder.0.0 reads 3 channels"),
}


def eager_of(*kinds: str) -> RunRecord:
    """Return a baseline that wins, of which each kind of kernel takes half of what the one before it takes."""
    profile = made_up.profile(made_up.BASELINE_SECONDS, kinds)
    return made_up.run(stages=[made_up.stage("eager", 1.0, 0.1, 10**9, "", profile=profile)])


def layout_bound() -> RunRecord:
    return eager_of("layout change", "convolution")


TRIPPED["layout"] = (rules.keep_one_layout, layout_bound(), "stage=channels_last", "layout changes take")


@pytest.mark.parametrize("case", TRIPPED)
def test_rule_speaks_with_evidence(case: str) -> None:
    rule, run, command, evidence = TRIPPED[case]
    line = said_by(rule, run)
    assert command in line.command
    assert evidence in worded(line).evidence


SILENT: dict[str, tuple[Rule, RunRecord]] = {
    "arithmetic": (rules.lower_the_bytes, near_full()),
    "no fp8 here": (rules.try_fp8, near_full()),
    "far from full": (rules.try_fp8, half_wins()),
    "wide image": (rules.mind_the_first_layer, of_many_channels()),
    "no layers": (rules.mind_the_first_layer, half_wins(diagnostics=None)),
    "full by growth": (
        rules.enlarge_the_batch,
        replace(half_wins(), measured_peaks=replace(made_up.run().measured_peaks, tflops={"fp16": 5000.0})),
    ),
    "quiet": (rules.quiet_the_machine, made_up.run()),
    "quick": (rules.take_the_quicker_build, run_with({"build_seconds": 0.5, "first_call_seconds": 0.1})),
    "busy": (rules.capture_a_graph, made_up.run()),
    "captured": (
        rules.capture_a_graph,
        run_with({**IDLING, "execution": replace(made_up.execution("compile"), captured=True)}),
    ),
    "compiled once": (rules.compile_for_all_shapes, run_with({"compile_facts": CompileFacts(recompile_reasons=[])})),
    "whole": (rules.mend_graph_breaks, run_with({"compile_facts": CompileFacts(graph_breaks={})})),
    "full": (rules.enlarge_the_batch, made_up.run()),
    "tuned": (rules.tune_longer, run_with({"options": {"mode": "max-autotune"}})),
    "few copies": (rules.shrink_the_copies, run_with({"latencies": [0.0085] * 100, "host_latencies": [0.009] * 100})),
    "one layout": (rules.keep_one_layout, eager_of("convolution")),
}


@pytest.mark.parametrize("case", SILENT)
def test_rule_is_silent_without_cause(case: str) -> None:
    assert said_by(*SILENT[case]) is None


def test_tf32_off_is_no_tf32_peak() -> None:
    """Eager in fp32 is held against the fp32 peak, not that of TF32, whatever its description says."""
    eager = made_up.stage("eager", 1.0, 0.1, 10**9, "", description="tf32?", diagnostics=None)
    rates = replace(made_up.run().measured_peaks, tflops={"fp32": 200.0, "tf32": 400.0})
    line = said_by(rules.enlarge_the_batch, made_up.run(stages=[eager], measured_peaks=rates))
    assert "fp32 peak" in worded(line).evidence
    assert "tf32" not in worded(line).evidence


TYPED = {
    "plainly": "python -m pipeline data.batch_size=8",
    "resumed": "python -m pipeline resume=outputs/old 'resume_despite=[code]' data.batch_size=8",
    "a list": "python -m pipeline 'stage=[compile,half,onnxruntime]' stage.rungs.compile.freezing=true",
    "a ladder": "python -m pipeline stage=ladder '~stage.rungs.tf32' +stage@stage.rungs.xla=xla seed=3",
    "a folder": "python -m pipeline --config-dir tests data=folder 'data.path=\"a b, c\"' data.normalize=imagenet",
}


def request(command: str) -> RunConfig:
    """The request of a command line, as the program itself parses, composes and reads it."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "pipeline"]
    line = parse(words[3:], ["a GPU"])
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("config", [word for override in line.overrides for word in hydra_words(override)])
    loaded = {name: OmegaConf.load(CONF / "stage" / f"{name}.yaml") for name in ("eager", "amp")}
    files: Any = {name: OmegaConf.to_container(file) for name, file in loaded.items()}
    values: Any = OmegaConf.to_container(config, resolve=True)
    return load.read(values, "cuda", files)


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("case", sorted(TRIPPED.keys() - {"copies"}))
def test_advised_commands_are_taken(case: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b, c").mkdir()
    rule, run, override, _ = TRIPPED[case]
    line = said_by(rule, replace(run, command=TYPED[typed]))
    asked = request(line.command)
    assert asked.resume is None
    if override.startswith("stage="):
        assert [stage.name for stage in asked.stages if stage.name != "eager"] == [override.removeprefix("stage=")]


def test_a_stage_that_was_in_the_run_is_no_advice() -> None:
    for case, name in (
        ("bytes of fp32", "half"), ("bytes", "compile"), ("first layer", "fused"), ("layout", "channels_last"),
        ("untuned", "compile_max"), ("fp8", "fp8"), ("idle", "compile_graph"),
    ):  # fmt: skip
        rule, run, _, _ = TRIPPED[case]
        other = replace(made_up.stage(name, 1.0, 0.1, 10**9, ""), status="failed", pairs=[])
        assert said_by(rule, replace(run, stages=[*run.stages, other])) is None


KEY_AND_VALUE = re.compile(r"(?<![\w.@/+~])([a-z_]+(?:\.[a-z_]\w*)*)=")


def test_every_key_that_a_message_names_is_one_of_the_program() -> None:
    """In all texts of the program: a key of a group of conf/ is one that can be typed."""
    keys = set(known_keys())
    groups = {key.split(".")[0] for key in keys if "." in key}
    named = {key for path in sorted(ROOT.rglob("*.py")) for key in KEY_AND_VALUE.findall(texts(path)) if "." in key}
    ours = {key for key in named if key.split(".")[0] in groups and not key.startswith("model.options.")}
    assert len(ours) > 30
    assert ours <= keys | {f"data.{key}" for key in ("mean", "std", "low", "high", "channels")}


def texts(path: Path) -> str:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_where_nothing_is_resolved_the_one_recommendation_is_to_measure_longer() -> None:
    (only,) = recommendations(made_up.summary(unresolved()))
    assert (only.code, only.figures["winner"]) == ("measure longer", "half")
    assert worded(only).line.startswith("Measure longer before choosing half precision: 4 blocks")
    assert request(only.command).plan.sampling_seconds == 540


def test_at_most_five_and_none_without_a_winner() -> None:
    everything = run_with(
        {"compile_facts": replace(RECOMPILED, graph_breaks={"print": 1}), "options": {"mode": "default"},
         **IDLING, "latencies": [0.005] * 9, "host_latencies": [0.009] * 9},
        aa_pairs=noisy(),
    )  # fmt: skip
    assert len(recommendations(made_up.summary(everything))) == rules.MOST
    assert recommendations(made_up.summary(made_up.run(stages=made_up.unwell()))) == []


@pytest.mark.parametrize("drawn", [made_up.page, made_up.as_markdown])
def test_reports_show_the_recommendations(drawn: Callable[[RunRecord], str]) -> None:
    hostile = made_up.run(command=f"python -m pipeline {shlex.quote('x=' + made_up.HOSTILE)}")
    text = drawn(hostile)
    assert "What to try next" in text
    assert all(line.text in text for line in recommendation_texts(made_up.summary(hostile)))
    assert "stage=onnxruntime" in text
    assert "<script>alert" not in re.sub(r"`[^`\n]*`", "", text)  # a code span is text already


def test_layout_changes_are_named_where_they_happen() -> None:
    places = ["upsample.3", None, "upsample.3", "upsample.2", "upsample.1", "upsample.0"]
    changes = [LayoutChange("copy", place, "trace", 1.0, 1e-3) for place in places]
    (stage,) = layout_bound().stages
    run = made_up.run(stages=[replace(stage, diagnostics=Diagnostics(layout=changes))])
    line = said_by(rules.keep_one_layout, run)
    assert worded(line).evidence.endswith("launches, at upsample.3, upsample.2 and upsample.1")


def test_every_recommendation_has_its_words() -> None:
    assert set(TEXTS) == set(get_args(Code))
    for text in TEXTS.values():
        for clause in [text["title"], *text["evidence"], *text.get("action", ())]:
            assert {form for _, name, form, _ in Formatter().parse(clause) if name} <= set(FORMATS)


def test_a_volumes_values_are_not_said_to_be_bytes() -> None:
    copies = run_with(COPYING)
    of_volumes = replace(copies, reference=replace(copies.reference, spatial_dims=3))
    told = said_by(rules.shrink_the_copies, of_volumes)
    assert (told.code, "uint8" in told.command) == ("shrink the answers", False)


LIST = "python -m pipeline 'model.options.strides=[2,2]' stage=half"
ADDED = "python -m pipeline +stage@stage.rungs.xla=xla '~stage.rungs.fp8' data.batch_size=8 stage=compilers"


@pytest.mark.parametrize(
    ("command", "overrides", "expected"),
    [
        ("python -m pipeline", ["a=1"], "python -m pipeline a=1"),
        ("python -m pipeline hydra.run.dir=here b=3", ["a=1"], "python -m pipeline b=3 a=1"),
        ("python -m pipeline resume=r 'resume_despite=[code]' 's=[a,b]'", ["c=1"], "python -m pipeline 's=[a,b]' c=1"),
        ("python -m pipeline a=2 b=3", ["a=1"], "python -m pipeline b=3 a=1"),
        ("python -m pipeline stage=compile stage.mode=default", ["stage=amp"], "python -m pipeline stage=amp"),
        ("python -m pipeline -m stage=a,b", ["stage=amp"], "python -m pipeline stage=amp"),
        ("python -m pipeline -m stage=a,b data.size=1,2", ["stage=c"], "python -m pipeline -m data.size=1,2 stage=c"),
        ("python -m pipeline 'unclosed", ["a=1"], "python -m pipeline a=1"),
        ("python -m pipeline 'x=$(rm -rf ~)'", ["a=1"], "python -m pipeline 'x=$(rm -rf ~)' a=1"),
        (LIST, ["measure=thorough"], f"{LIST} measure=thorough"),
        (ADDED, ["measure=thorough"], f"{ADDED} measure=thorough"),
        (ADDED, ["stage=xla"], "python -m pipeline data.batch_size=8 stage=xla"),
    ],
)
def test_retyped_keeps_what_the_user_typed(command: str, overrides: list[str], expected: str) -> None:
    assert retyped(command, *overrides) == expected


@pytest.mark.parametrize("flag", ["--config-dir conf/mine", "--config-dir=conf/mine", "-cd conf/mine", "-cp 'my conf'"])
@pytest.mark.parametrize("behind", [False, True])
def test_the_folder_of_the_users_configuration_stays(flag: str, behind: bool) -> None:
    words = ["stage=mix", flag] if behind else [flag, "stage=mix"]
    command = " ".join(["python -m pipeline", *words, "hydra.run.dir=x"])
    assert retyped(command, "measure=thorough") == f"python -m pipeline {flag} stage=mix measure=thorough"
