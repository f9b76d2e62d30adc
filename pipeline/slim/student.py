"""The two actions, in order: what other forms of a network would gain, and the training of one under the gate."""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, show
from pipeline.compiler.batch import batched
from pipeline.config.request_error import RequestError
from pipeline.errors import InputError
from pipeline.export.recorded_stage import check_net, check_weights, data_has_changed
from pipeline.measure.torch_device import keep_to_quota, open_device
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import markdown
from pipeline.report.formatting import significant
from pipeline.slim import card, distil
from pipeline.slim.command import Target
from pipeline.slim.gate import MAX_DICE_DROP, judge
from pipeline.slim.pareto import best_stages
from pipeline.slim.pictures import Batches, masks, split
from pipeline.slim.what_if import FULL, Row, compared, measured_plan, shown, write_page
from pipeline.slim.widths import SLICED, Form, Full, parameters
from pipeline.stats.dice import overlap
from pipeline.worker.bench import Bench
from pipeline.worker.run_stage import prepare
from pipeline.worker.workload import example_of, net_of_spec

WHAT_IF_SECONDS = 300.0
SCORED = 16  # held-out images of a progress line
Say = Callable[[str], None]


def full_of(run: RunRecord, folder: Path, device: str) -> Full:
    """Return the run's network.

    Raises:
        REFUSALS: its weights have changed, or it answers otherwise than in the run.
    """
    check_weights(run)
    net = net_of_spec(run.config.model, run.config.seed)
    example = example_of(run.config.data)
    if not data_has_changed(run):
        check_net(folder, run, net.to(device), batched(example[0].to(device)))
    return Full(run.config.model, net.cpu(), [part[:1] for part in example], run.config.seed)


def bench_of(run: RunRecord, stage: StageRecord, device: str, scratch: Path) -> Bench:
    """Return the full network's bench in a stage of the run."""
    job = run.config.job(stage.spec, "stage", scratch)
    job = replace(job, device=device, plan=measured_plan(job.plan), reference="", folder=str(scratch / stage.name))
    return prepare(job, stage.net_layout)


def what_if(asked: argparse.Namespace, run: RunRecord, device: str) -> int:
    """Measure all forms, print a table and write a page; return the exit code."""
    keep_to_quota()
    full = full_of(run, asked.run, device)
    seconds = asked.seconds or WHAT_IF_SECONDS
    with Progress(0) as progress:
        found = rows_of(run, device, best_stages(run), list(full.forms()), seconds, progress.say)
    page = write_page(found, run.config.model.name, asked.out or asked.run)
    show("\n".join(markdown.table(shown(found))) + f"\n{page}\n")
    return 0 if any(row.seconds for row in found) else FAILED


def rows_of(
    run: RunRecord, device: str, stages: list[StageRecord], forms: list[Form], seconds: float, say: Say
) -> list[Row]:
    """Return the measurements of forms."""
    with TemporaryDirectory(prefix="unet-ladder-") as scratch:
        return list(compared(lambda stage: bench_of(run, stage, device, Path(scratch)), stages, forms, seconds, say))


def share_for(target: Target, found: list[Row]) -> Fraction:
    """Return the largest share of the widths that reaches a target.

    Raises:
        InputError: none does; the line names the best.
    """
    measured = [row for row in found if row.share is not None and row.faster is not None]
    reached = [row.share for row in measured if reaches(target, row) and row.share]
    if reached:
        return max(reached)
    said = ", ".join(
        f"{row.form}: {significant(row.faster.value)} ×, {significant(1e3 * (row.seconds or 0))} ms"
        for row in measured if row.faster and row.form != FULL
    )  # fmt: skip
    raise InputError(f"--target {target.text}: no width reaches it ({said or 'none could be measured'})")


def reaches(target: Target, row: Row) -> bool:
    """Return whether a form reaches the target."""
    size = row.memory_bytes if row.memory_bytes is not None else 4 * (row.parameters or 0)
    fast = row.faster is not None and row.faster.value >= target.least_ratio
    return fast and (row.seconds or math.inf) <= target.most_seconds and size <= target.most_bytes


def train(asked: argparse.Namespace, run: RunRecord, device: str) -> int:
    """Train a student, judge it and write its folder; return the exit code."""
    keep_to_quota()
    open_device(device)
    place = distil.join_others(device)
    try:
        with Progress(0) as progress:
            return trained(asked, run, place, progress.say if distil.rank() == 0 else lambda _: None)
    finally:
        distil.leave_others()


def chosen_share(target: Target, kept: Path, run: RunRecord, full: Full, device: str, say: Say) -> Fraction:
    """Return the width that reaches a target in the run's best stage, which an earlier call may have kept."""
    if distil.rank() == 0 and not kept.exists():
        forms = [form for form in full.forms() if form.share is not None]
        found = rows_of(run, device, best_stages(run)[:1], forms, WHAT_IF_SECONDS, say)
        kept.write_text(str(share_for(target, found)), encoding="utf-8")
    distil.wait_for_others()
    return Fraction(kept.read_text(encoding="utf-8"))


def draw_again(net: nn.Module, seed: int) -> None:
    """Give a network random weights."""
    torch.manual_seed(seed)
    for layer in net.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()


def placed(made: ModelSpec, weights: Path) -> ModelSpec:
    """Return what makes the student, with its weights."""
    options = {**made.options, "weights": str(weights)} if made.target == SLICED else made.options
    return replace(made, options=options, checkpoint=str(weights), checkpoint_key=None, trained=None)


def trained(asked: argparse.Namespace, run: RunRecord, device: torch.device, say: Say) -> int:
    """Return the exit code of `train`."""
    config, full = run.config, full_of(run, asked.run, str(device))
    with torch.inference_mode():
        classes = max(2, int(full.net(*full.example).shape[1]))
    name = asked.target.text if asked.target else f"{asked.width.numerator}-{asked.width.denominator}"
    folder = asked.out or asked.run.with_name(f"{asked.run.resolve().name}-slim-{name}")
    folder.mkdir(parents=True, exist_ok=True)
    share = asked.width or chosen_share(asked.target, folder / "width.txt", run, full, device.type, say)
    made, slim = full.slimmer(share)
    counts = (parameters(full.net), parameters(slim))
    say(f"a student {share} as wide, {counts[1]:,} parameters of {counts[0]:,}, in {folder}")
    learnt, held = split(config.data, asked.images, asked.labels, asked.seed)
    if asked.by_labels_alone:
        draw_again(slim, asked.seed)
        if learnt.labels is None:
            raise RequestError("--by-labels-alone: the training images have no labels")
    batches, judged = (Batches(part, config.data.contract, device, asked.seed) for part in (learnt, held))
    recipe = distil.Recipe(str(share), asked.steps, asked.batch, asked.seed, asked.by_labels_alone)
    training = distil.Training(slim, full.net, batches, recipe, folder / "checkpoint.pt")
    full_masks = masks(full.net, judged, asked.batch)
    right, against = (full_masks, "the full network's masks") if held.labels is None else (held.labels, "labels")

    def score() -> str:
        found = masks(slim, judged, asked.batch, SCORED)
        dice = overlap(found, right[: len(found)], classes).dice()
        return f"Dice against {against} so far {dice[1:].mean():.4f}"

    request = [asdict(recipe), run.reference and run.reference.weights_sha256, card.digest(learnt)]
    if not training.run(json.dumps(request), asked.seconds or math.inf, say, score):
        say(f"time is up at step {training.step:,} of {asked.steps:,}; the same command goes on")
        return 0
    if distil.rank():
        return 0
    weights = folder / "weights.safetensors"  # of clones, as a network may hold a tensor under two names
    save_file({key: part.cpu().clone().contiguous() for key, part in slim.state_dict().items()}, weights)
    found = masks(slim, judged, asked.batch)
    limit = asked.max_dice_drop or config.accuracy.max_dice_drop or MAX_DICE_DROP
    before, after = (overlap(part, right, classes) for part in (full_masks, found))
    verdict = judge(before, after, held.pictures, limit, asked.seed, against)
    student = card.Student(placed(made, weights), counts, recipe, learnt, held)
    card.write(folder, run, student, verdict, (full_masks, found))
    training.checkpoint.unlink(missing_ok=True)
    for line in (*(f"note: {note}" for note in verdict.notes), verdict.told):
        say(line)
    show(f"{folder}\n")
    return 0 if verdict.passed else FAILED
