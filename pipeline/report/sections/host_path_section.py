"""The path around the net, from the host's memory and back: what each move buys, in a table and in sentences."""

from functools import partial

from pipeline.analysis.path_shares import Move, moves, net_share
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report.formatting import clean, milliseconds, seconds, share, significant
from pipeline.report.tables import Column, Table, figure, names, table_of
from pipeline.stats.intervals import seconds_per_call

TITLE = "Around the net"
NOTE = (
    "Milliseconds of a call of the whole batch, one after another, from pinned host memory and back. Each column keeps "
    "the moves of those before it: {samples} as bytes, normalised on the device; classes in place of logits; and a "
    "ring of buffers, in which the copies of one batch run while another is computed."
)
NAMES = ("as it is", "uint8 in", "classes out", "ring")


def columns() -> list[Column[StageSummary]]:
    """The net alone, and the path around it with each further move."""
    return [
        names("stage", lambda stage: clean(stage.name)),
        Column(
            "net alone",
            "",
            "ms on the device, interleaved with the baseline",
            figure(
                lambda stage: seconds_per_call(stage.stage.pairs).value if stage.stage.pairs else None, milliseconds
            ),
        ),
        *(
            Column(
                name,
                "",
                "ms, with the moves so far",
                figure(partial(taken, name), milliseconds),
                csv=f"host_path_{name.replace(' ', '_')}_s",
            )
            for name in NAMES
        ),
        Column("net's share", "", "of the path as it is", figure(share_as_it_is, share), csv="host_path_net_share"),
    ]


def measured(summary: RunSummary) -> list[StageSummary]:
    """Every ranked stage whose path was measured."""
    return [stage for stage in summary.ranked if stage.stage.host_path]


def table(summary: RunSummary) -> Table:
    """All of them; layouts that none was measured in are left out."""
    return table_of(columns(), measured(summary)).without_empty_columns


def move_of(stage: StageSummary, name: str) -> Move | None:
    """The layout of that name; None where it wasn't measured."""
    return next((move for move in moves(stage.stage) if move.name == name), None)


def taken(name: str, stage: StageSummary) -> float | None:
    """Seconds of a call of that layout."""
    move = move_of(stage, name)
    return move.seconds if move else None


def share_as_it_is(stage: StageSummary) -> float | None:
    """The net's share of the path as it is."""
    first = move_of(stage, NAMES[0])
    return net_share(stage.stage, first.seconds) if first else None


def sentences(summary: RunSummary) -> list[str]:
    """What the net is of the winner's path, and what each move buys; or why nobody knows."""
    stage = summary.winner or next(iter(summary.ranked), None)
    if stage is None:
        return []
    if not stage.stage.host_path:
        reason = stage.stage.host_path_left_out
        return [f"Not measured: {clean(reason)}."] if reason else []
    found = moves(stage.stage)
    part, last = share_as_it_is(stage), found[-1]
    net = f"; the net itself is {share(part)} of it" if part is not None else ""
    lines = [f"{clean(stage.name)}: {seconds(found[0].seconds)} a call from the host's memory and back{net}."]
    bought = [f"{move.name} {significant(move.bought, 3)} ×" for move in found if move.bought]
    left = net_share(stage.stage, last.seconds)
    after = f", of which the net is {share(left)}" if left is not None else ""
    whole = significant(found[0].seconds / last.seconds, 3)
    lines.append(
        f"Times as fast with each move: {', '.join(bought)}. Together {whole} ×: {seconds(last.seconds)} a call{after}."
    )
    return lines
