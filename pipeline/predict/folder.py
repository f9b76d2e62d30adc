"""The folder of masks: its lock, the masks that are there already, and the start of the loop for missing ones."""

import argparse
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pipeline.analysis.plans_note import training_notes
from pipeline.command_line import tell
from pipeline.config.request_error import RequestError
from pipeline.export.contract import Contract
from pipeline.predict.cases import Case
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import LEVEL, Look, Statements, palette_of
from pipeline.predict.report import TIMER, Outcome
from pipeline.predict.shards import alone_in, clear_unfinished, shard_of
from pipeline.predict.sources import Planned, Predictor, identity, of_bundle, product_of
from pipeline.predict.windows import SIDES_OF_AN_IMAGE, STEP, Cut
from pipeline.predict.workers import Workers
from pipeline.records.data_words import VOLUMES
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import clean

LEAST_VISIBLE = 8  # of 255
OVERLAP_SHARE = 4  # windows overlap by a quarter of their side by default


def predict_cases(cases: Given, source: RunRecord | Contract, asked: argparse.Namespace, workers: Workers) -> Outcome:
    """Make the missing masks, with predict.json before and after; build no network if none is missing.

    `workers` are processes, which serve a GPU.
    """
    shard = shard_of(asked.shard)
    if (manifest := asked.out / shard.manifest).exists() and not manifest.is_file():
        raise RequestError(f"{manifest}: no regular file; name another folder by --out")
    with alone_in(asked.out, shard), tempfile.TemporaryDirectory(prefix="unet-ladder-") as scratch:
        statements = Statements(asked.out)
        if any(not path.name.endswith(".lock") for path in asked.out.iterdir()):
            clear_unfinished(asked.out, shard)
            for case in cases:
                if not case.problem:
                    statements.check(case.mask)
        cases.statements = statements
        planned = planned_for(source, asked, Path(scratch))
        if isinstance(source, RunRecord):
            volumes = planned.words is VOLUMES
            files = [file for case in cases for file in case.files] if volumes else []
            planned.notes.extend(training_notes(source.config, files))
        ready = Ready(planned, asked)
        for note in planned.notes:
            tell(f"note: {clean(note)}")
        if outcome := ready.kept(cases, asked.out):
            made = f"every {outcome.sample} has its {outcome.product} by {planned.name}"
            tell(f"nothing is left to do: {made}, and nothing changed since")
        else:
            TIMER.turn("load or build the network")
            prediction = ready.prediction(asked.out)
            prediction.kept = workers if prediction.network.on_gpu else None
            prediction.outcome.write(manifest, ready.made_of, ready.made_by, finished=False)
            outcome = prediction.make(cases, tell)
        outcome.write(manifest, ready.made_of, ready.made_by, finished=True)
        tell_invisible(outcome)
    return outcome


def planned_for(source: RunRecord | Contract, asked: argparse.Namespace, scratch: Path) -> Planned:
    """Plan the network of a run or a bundle."""
    if isinstance(source, Contract):
        return of_bundle(source, asked)
    from pipeline.predict.run_source import of_run  # imports the measuring worker, which no bundle needs

    return of_run(source, asked, scratch)


class Ready:
    """A planned predictor with all that its masks depend on; its network is built once it is needed."""

    def __init__(self, planned: Planned, asked: argparse.Namespace) -> None:
        if asked.probabilities and planned.gives != "logits":
            raise RequestError(f"--probabilities: {planned.name} gives {planned.gives}, no logits; leave it out")
        self.planned = replace(planned, gives="scores") if asked.probabilities else planned
        self.workers, self.share = asked.workers, shard_of(asked.shard).name
        sides = planned.sides or (() if asked.whole else self.predictor.shape[2:])
        self.cut, said = cut_of(planned, sides, asked)
        listed = planned.labels.colors if planned.labels else ()
        palette, level = palette_of(listed) if asked.colors else (), asked.compression
        self.look = Look(palette, asked.overlay, axes=planned.axes, compression=LEVEL if level is None else level)
        self.made_of = {**planned.made_of, **said} | ({"probabilities": True} if asked.probabilities else {})
        if asked.colors or asked.overlay:
            self.made_of |= {"colors": list(listed), "overlay": asked.overlay}
        self.made_by = identity(self.made_of)

    @cached_property
    def predictor(self) -> Predictor:
        """The network."""
        return replace(self.planned.build(), gives=self.planned.gives)

    def prediction(self, folder: Path) -> Prediction:
        """Return what makes masks in a folder."""
        return Prediction(self.predictor, folder, self.made_by, self.cut, self.look, self.workers, self.share)

    def kept(self, cases: Given | list[Case], folder: Path) -> Outcome | None:
        """Return the outcome if the masks of all cases are in a folder, made of the same by the same."""
        with suppress(OSError):  # a case whose files are gone has no mask
            if all(case.is_made(folder, self.made_by) for case in cases):
                product, sample = product_of(self.planned.gives), self.planned.words.sample
                return Outcome(product, sample, kept=len(cases))
        return None


def tell_invisible(outcome: Outcome) -> None:
    """Print a note if viewers show all masks as black."""
    if 0 < outcome.largest < LEAST_VISIBLE:
        tell(f"note: the masks hold classes up to {outcome.largest}, which viewers show as black; --colors shows them")


def cut_of(planned: Planned, sides: tuple[int, ...], asked: argparse.Namespace) -> tuple[Cut, dict[str, object]]:
    """Return how images become windows of these sides, and its entry in predict.json."""
    if asked.whole:
        if not planned.any_size:
            taken = f"{planned.words.samples} of one size"
            raise RequestError(f"--whole: {planned.name} is built for {taken}; leave it out for windows")
        return Cut(whole=True), {"whole": True}
    if len(sides) > SIDES_OF_AN_IMAGE:
        step = STEP if asked.step is None else asked.step
        answers = "of the nearest window" if planned.gives == "classes" else "blended"
        return Cut(step=step), {"window": list(sides), "step": step, "answers": answers}
    smaller = min(sides)
    overlap = smaller // OVERLAP_SHARE if asked.overlap is None else asked.overlap
    if overlap >= smaller:
        raise RequestError(f"--overlap {overlap}: less than the {smaller} pixels of a window's side is wanted")
    return Cut(overlap=overlap), {"window": list(sides), "overlap": overlap}
