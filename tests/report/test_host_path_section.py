"""What the report says of the path around the net."""

from dataclasses import replace

from pipeline.analysis.summary import RunSummary, summarize
from pipeline.analysis.traffic import moves, net_share
from pipeline.records.samples import HostPath
from pipeline.report.markdown import explaining
from pipeline.report.sections.host import path_section
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.made_up_request import changed

PATH = [
    HostPath("as it is", [0.4, 0.08, 0.08], 100, 50),
    HostPath("classes out", [0.04], 100, 10),
    HostPath("ring", [0.02], 100, 10),
]


def summary(**fields: object) -> RunSummary:
    """A run whose winner takes 10 ms, and a stage whose path wasn't measured."""
    fast = changed(stage_record("fast", steady_pair(2.0, b="fast")), **fields)
    return summarize(run_record([fast, stage_record("eager", steady_pair(1.0, b="eager"))]))


def test_each_move_is_against_the_one_before_it() -> None:
    stage = summary(host_path=PATH).ranked[0].stage
    assert [(move.name, move.seconds, move.bought) for move in moves(stage)] == [
        ("as it is", 0.08, None),
        ("classes out", 0.04, 2.0),
        ("ring", 0.02, 2.0),
    ]
    own = net_share(stage, 1.0)
    assert own is not None
    assert net_share(stage, own / 4) == 1.0, "a ring may beat the samples by a hair"
    assert net_share(replace(stage, pairs=[]), 1.0) is None


def test_the_winner_s_path_is_told_in_words_and_all_in_a_table() -> None:
    found = summary(host_path=PATH)
    lines = path_section(found).sentences
    assert lines[0].startswith("fast: 80.0 ms per call including transfers to and from the GPU; the network itself is ")
    assert "Speed-up of each move: classes out 2.00 ×, ring 2.00 ×. Together 4.00 ×: 20.0 ms per call" in lines[1]
    titles = ["method", "network alone", "as it is", "classes out", "ring", "network's share"]
    assert path_section(found).table.titles == titles
    assert len(path_section(found).table.rows) == 1
    assert any(section.anchor == "around" for section in explaining(found))


def test_what_was_not_measured_says_why() -> None:
    assert path_section(summary(host_path_left_out="no copies")).sentences == ["Not measured: no copies."]
    assert path_section(summary()).empty
