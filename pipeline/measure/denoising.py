"""A denoising loop, by which a diffusion net is judged: what its errors come to after some steps, each on its own last.

The sampler is DDIM without noise of its own: Song, Meng and Ermon, "Denoising Diffusion Implicit Models", 2020, eq. 12.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.records.tasks import Schedule, Task

TRAINED_STEPS = 1000  # of the schedule
FIRST, LAST = {"linear": 1e-4, "scaled_linear": 8.5e-4}, {"linear": 2e-2, "scaled_linear": 1.2e-2}  # of its variances
MOST_VARIANCE = 0.999  # of a step, by the cosine schedule's authors
OFFSET = 0.008  # likewise


def kept_signal(schedule: Schedule) -> Tensor:
    """The share of the signal's variance left after each of the 1000 steps: the running product of 1 − β, fp64.

    "linear" is Ho, Jain and Abbeel's (2020), "scaled_linear" that of latent diffusion (Rombach et al., 2022), "cosine"
    Nichol and Dhariwal's (2021).
    """
    if schedule == "cosine":
        at = (torch.arange(TRAINED_STEPS + 1, dtype=torch.float64) / TRAINED_STEPS + OFFSET) / (1 + OFFSET)
        left = torch.cos(at * math.pi / 2).square()
        variances = (1 - left[1:] / left[:-1]).clamp(max=MOST_VARIANCE)
    else:
        power = 2 if schedule == "scaled_linear" else 1
        ends = (FIRST[schedule] ** (1 / power), LAST[schedule] ** (1 / power))
        variances = torch.linspace(*ends, TRAINED_STEPS, dtype=torch.float64) ** power
    return (1 - variances).cumprod(0)


def denoised(run: Callable[[Batch], Tensor], start: Batch, task: Task) -> Iterator[Tensor]:
    """The latents after each step of the loop, fp32, on the CPU, from the first input as the noise that it starts with.

    Args:
        run: the net or a stage; it may write over its last answer.
        start: the inputs of a call, copied before anything is changed; the task's time step is set at each step.
        task: of diffusion.
    """
    batch, kept = start.clone(), kept_signal(task.schedule)
    counter = batch.tensors[batch.names.index(task.timestep)]
    times = torch.linspace(TRAINED_STEPS - 1, 0, task.steps, dtype=torch.float64).round().long().tolist()
    for number, time in enumerate(times):
        counter.fill_(time)
        with torch.inference_mode():
            answer = run(batch).float()
        now = float(kept[time])
        following = float(kept[times[number + 1]]) if number + 1 < len(times) else 1.0
        clean, noise = parts(batch.first, answer, now, task)
        batch.first.copy_(math.sqrt(following) * clean + math.sqrt(1 - following) * noise)
        yield batch.first.cpu().clone()


def parts(latents: Tensor, answer: Tensor, kept: float, task: Task) -> tuple[Tensor, Tensor]:
    """The clean latents and the noise that a net's answer stands for; all of one shape.

    Args:
        latents: that the net was given.
        answer: the net's.
        kept: the share of the signal's variance that the latents hold.
        task: says what the net answers with; "v_prediction" is Salimans and Ho's (2022).
    """
    signal, spread = math.sqrt(kept), math.sqrt(1 - kept)
    if task.prediction == "epsilon":
        return (latents - spread * answer) / signal, answer
    if task.prediction == "sample":
        return answer, (latents - signal * answer) / spread
    return signal * latents - spread * answer, signal * answer + spread * latents
