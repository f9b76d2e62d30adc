"""Writes check.py into a run's folder: a plain loop by which a sceptic times any stage against the baseline."""

from pathlib import Path

from pipeline.analysis.summary import winner_of
from pipeline.records.run_record import AUTOCAST, RunRecord
from pipeline.stats.intervals import DRIFT_UNFAIR
from pipeline.stats.ranking import ranking

FILE = "check.py"
SCRIPT = '''\
"""A plain loop to check the report by: python check.py [STAGE [SECONDS]], from where the run was started."""
import math, sys, time
from pathlib import Path
from statistics import median
import torch
sys.path.append("")  # a checkout that isn't installed
from pipeline.records import codec
from pipeline.worker.run_stage import prepare
from pipeline.worker.workload import net_of
asked, seconds = (sys.argv[1:] or ["{stage}"])[0], float((sys.argv[2:] or [3])[0])
run, here = codec.load(Path(__file__).parent), Path(__file__).with_name("check")
stage = next((part for part in run.stages if part.name == asked), None) or sys.exit(f"{{asked}}: no such stage")
job = run.config.job(stage.spec, "stage", here)
bench = prepare(job, stage.net_layout)  # the run's images, on which the stage calibrates again
theirs, batches = net_of(job).to("{device}"), [tuple(each) for each in bench.inputs]
cudnn, matmul, wait = torch.backends.cudnn, torch.backends.cuda.matmul, {wait}
{plain}
bench.build()
sides = [(plain, [{fast}] * 3), (bench.runner.run, [cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32])]
def loop(call, number):
    wait()
    start = time.perf_counter()
    for index in range(number):
        call(*batches[index % len(batches)])
    wait()
    return (time.perf_counter() - start) / number
taken = [], []  # of the baseline and of the stage, interleaved, each after a run-in
with torch.inference_mode():
    for (call, switches), found in list(zip(sides, taken)) * 3:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = switches
        each = loop(call, math.ceil(seconds / 1.5 / loop(call, 5)))
        found.append(loop(call, math.ceil(seconds / each)))
first, own = (1e3 * median(found) for found in taken)
rounds = sorted(one / other for one, other in zip(*taken))
apart = ": too far apart to tell, run it on an idle machine" if rounds[-1] > {apart} * rounds[0] else ""
told = f"ratio {{first / own:.4f}}, in {{len(rounds)}} rounds {{rounds[0]:.4g}} to {{rounds[-1]:.4g}}{{apart}}"
print(f"{baseline}: {{first:.4g}} ms, {{asked}}: {{own:.4g}} ms a call, {{told}}")
'''
PLAIN_AUTOCAST = """\
last = {4: torch.channels_last, 5: torch.channels_last_3d}
laid = lambda part: part.contiguous(memory_format=last.get(part.dim(), torch.contiguous_format))
for part in theirs.parameters(): part.data = laid(part.data)
def plain(*inputs):
    with torch.autocast("cuda", torch.float16): return theirs(*map(laid, inputs))"""
PLAIN_AUTOCAST_NCHW = """\
def plain(*inputs):  # the net doesn't take channels_last
    with torch.autocast("cuda", torch.float16): return theirs(*inputs)"""
PLAIN_EAGER = """\
plain = theirs"""


def script(run: RunRecord) -> str:
    """Return the text of check.py for a run that has described its machine; it times the winner unless told otherwise.

    Without a winner it times the fastest stage, resolved or not, and without any the first that was asked for.
    """
    assert run.environment is not None
    today = run.baseline == AUTOCAST
    winner = winner_of(run)
    fastest = next((name for name in ranking(run).order if name != run.baseline), None) if winner is None else None
    nchw = any(stage.net_layout == "NCHW" for stage in run.stages)
    return SCRIPT.format(
        stage=winner or fastest or next((stage.name for stage in run.stages), run.baseline),
        baseline=run.baseline,
        device=run.environment.device,
        wait="torch.cuda.synchronize" if run.environment.device == "cuda" else "int",
        plain=(PLAIN_AUTOCAST_NCHW if nchw else PLAIN_AUTOCAST) if today else PLAIN_EAGER,
        fast=today,
        apart=1 + DRIFT_UNFAIR,
    )


def write(run: RunRecord, folder: Path) -> None:
    """Leave check.py in the run's folder; nothing, where the run ended before it described its machine."""
    if run.environment is not None:
        (folder / FILE).write_text(script(run), encoding="utf-8")
