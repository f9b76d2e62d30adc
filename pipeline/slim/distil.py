"""Training of a slim network by the full one: its logits (Hinton et al., 2015), and labels if any."""

import os
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from models.training import peak_rate
from pipeline.compiler.batch import CHANNELS_LAST
from pipeline.compiler.cuda_graphs import capturing
from pipeline.errors import InputError, first_line
from pipeline.records.disk import write_bytes
from pipeline.slim.pictures import Batches

BY_LABELS = 0.5  # weight of the labels beside the full network
WARM_UP = 0.05  # share of the steps in which the rate rises
FADE = 0.5  # share of the steps by whose end tint and noise are gone: the last images are as the held-out ones
SAID_SECONDS, SAVED_SECONDS = 15.0, 60.0
TRIED, TIMED = 20, 50  # trial steps that compile and warm up, and those whose time counts
ENDLESS = 10**9  # steps, of which the rate of the first ones is next to nothing
DECAY = 0.01
STREAMS = 16  # of Muon's step on a GPU, where one matrix's products keep few cores busy
ENDS = 4  # channels: filters of no more read the image or give the logits, and their matrices mean little
FILTERS_TIMES = 10.0  # the rate of Muon, which makes steps of even size in all directions (Jordan et al., 2024)
RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # one for each GPU
BatchLoss = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]  # of inputs, labels, and wanted logits


@dataclass(frozen=True)
class Recipe:
    """The settings of a training; with the same steps they give the same weights on a CPU."""

    share: str  # of the full network's widths, as typed
    steps: int  # 0 until it is known how many fit `minutes`
    minutes: float
    batch: int  # images a step, of all GPUs together
    seed: int  # of weights and batches
    by_labels_alone: bool = False  # without the full network, to see what it is worth


def of_two(logits: Tensor) -> Tensor:
    """Return logits [batch, classes, ...] in fp32; of one channel as those of two classes."""
    logits = logits.float()
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def loss_of(answer: Tensor, wanted: Tensor | None, labels: Tensor | None) -> Tensor:
    """Return how far logits [batch, classes, ...] are from the full network's, and from the labels [batch, ...]."""
    answer, loss = of_two(answer), answer.new_zeros(())
    if wanted is not None:
        shares = answer.log_softmax(1), of_two(wanted).log_softmax(1)
        loss = functional.kl_div(*shares, reduction="none", log_target=True).sum(1).mean()
    if labels is None:
        return loss
    known = labels < answer.shape[1]
    right = labels.long().where(known, 0)
    by_pixel = functional.cross_entropy(answer, right, reduction="none")
    pixels = [0, *range(2, answer.ndim)]
    likely = answer.softmax(1) * known[:, None]
    ones = functional.one_hot(right, answer.shape[1]).movedim(-1, 1) * known[:, None]
    dice = (2 * (likely * ones).sum(pixels) + 1) / (likely.sum(pixels) + ones.sum(pixels) + 1)
    dice_loss = 1 - dice[1:].mean()  # of classes without the background, over all known pixels of the batch
    by_labels = (by_pixel * known).sum() / known.sum().clamp_min(1) + dice_loss
    return loss + (by_labels if wanted is None else BY_LABELS * by_labels)


class Filters:
    """Muon on the filters of layers, each a matrix; on a GPU a CUDA graph, as the host takes 9 ms for 1,000 kernels."""

    def __init__(self, weights: list[Tensor], on_gpu: bool) -> None:
        self.weights, self.on_gpu = weights, on_gpu
        self.layers = [each.detach().movedim(1, -1) for each in weights]  # as channels_last has them in memory
        self.graph: torch.cuda.CUDAGraph | None = None
        self.steps: list[Tensor] = [nn.Parameter(torch.zeros_like(layer.flatten(1))) for layer in self.layers]
        self.grads = [torch.zeros_like(step) for step in self.steps]
        for step, grad in zip(self.steps, self.grads, strict=True):
            step.grad = grad
        largest_first = sorted(self.steps, key=Tensor.numel, reverse=True)
        parts = [largest_first[first::STREAMS] for first in range(min(STREAMS, len(weights)))]
        self.muons = [torch.optim.Muon(part, 1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw") for part in parts]
        self.streams = [torch.cuda.Stream() if on_gpu else None for _ in parts]

    def take(self, rate: float) -> None:
        """Change the filters by their gradients; unused ones have none."""
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.weights]
        torch._foreach_copy_(self._shaped(self.grads), [grad.movedim(1, -1) for grad in grads])
        if self.graph:
            self.graph.replay()
        else:
            self._steps_of_one()
            if self.on_gpu:  # record further steps, now that Muon has its momenta
                self.graph = torch.cuda.CUDAGraph()
                with capturing(self.graph, errors="thread_local"):
                    self._steps_of_one()
        with torch.no_grad():
            torch._foreach_mul_(self.layers, 1 - rate * DECAY)
            torch._foreach_add_(self.layers, self._shaped(self.steps), alpha=rate)

    def _shaped(self, matrices: list[Tensor]) -> list[Tensor]:
        return [matrix.view_as(layer) for matrix, layer in zip(matrices, self.layers, strict=True)]

    def _steps_of_one(self) -> None:
        with torch.no_grad():
            torch._foreach_zero_(self.steps)
        for muon, stream in zip(self.muons, self.streams, strict=True):
            if stream:
                stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                muon.step()
        for stream in filter(None, self.streams):
            torch.cuda.current_stream().wait_stream(stream)


class Training:
    """A slim network's training by the full one, resumed from its checkpoint where there is one."""

    def __init__(self, slim: nn.Module, full: nn.Module, batches: Batches, recipe: Recipe, checkpoint: Path) -> None:
        self.recipe, self.batches, self.checkpoint = recipe, batches, checkpoint
        self.device, self.on_gpu = batches.device, batches.device.type == "cuda"
        self.layout = CHANNELS_LAST[batches.images.ndim] if self.on_gpu else torch.contiguous_format
        self.full, self.slim = full.eval().requires_grad_(False), slim.requires_grad_()
        for net in (full, slim):
            net.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload, unused-ignore]
        self.peak = peak_rate(slim)
        inner: list[Tensor] = [part for part in slim.parameters() if part.ndim > 1 and min(part.shape[:2]) > ENDS]
        others = [part for part in slim.parameters() if all(part is not each for each in inner)]
        self.adamw = torch.optim.AdamW(others, weight_decay=DECAY, fused=self.on_gpu)
        self.filters = Filters(inner, self.on_gpu) if inner else None
        self.optimizers = [self.adamw, *(self.filters.muons if self.filters else [])]
        self.step = 0
        torch.backends.cudnn.benchmark = self.on_gpu
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")  # of its own choices

    def _resume(self, asked: str) -> None:
        """Load the checkpoint if there is one; raise InputError if it is of another request, or broken."""
        if not self.checkpoint.exists():
            return
        try:
            kept = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            if is_same := kept["asked"] == asked:
                self.slim.load_state_dict(kept["slim"])
                for optimizer, state in zip(self.optimizers, kept["optimizers"], strict=True):
                    optimizer.load_state_dict(state)
                self.step, self.recipe = kept["step"], replace(self.recipe, steps=kept["steps"])
        except Exception as error:  # noqa: BLE001 - the unpickler raises any type, and so do other contents
            said = f"{self.checkpoint}: can't be read ({first_line(error)}); remove it to begin again"
            raise InputError(said) from None
        if not is_same:
            raise InputError(f"{self.checkpoint}: it is of another training; name another --out, or remove it")

    def _save(self, asked: str) -> None:
        """Write the checkpoint; an earlier one stays until this one is whole."""
        if RANK == 0:
            content = BytesIO()  # torch names no full disk
            states = {"slim": self.slim.state_dict(), "optimizers": [each.state_dict() for each in self.optimizers]}
            torch.save({"asked": asked, "step": self.step, "steps": self.recipe.steps, **states}, content)
            write_bytes(content.getvalue(), self.checkpoint)

    def run(self, asked: str, seconds: float, say: Callable[[str], None], score: Callable[[], str]) -> bool:
        """Train until the last step or the time's end, and return whether all steps of the request are done."""
        began = said = saved = time.monotonic()
        self._resume(asked)
        if self.step:
            say(f"resumed at step {self.step:,}")
        if not self.recipe.by_labels_alone:
            self._ask(say)
        loss, losses = self._loss(), list[Tensor]()
        if not self.recipe.steps:
            self._fit_steps(loss, began)
            say(f"{self.recipe.steps:,} steps of {self.recipe.batch} images fit {self.recipe.minutes:g} minutes")
        try:
            while self.step < self.recipe.steps:
                losses.append(self._step(loss))
                now = time.monotonic()
                if now - said > SAID_SECONDS or self.step == self.recipe.steps:
                    mean = float(torch.stack(losses).mean())
                    say(f"step {self.step:,} of {self.recipe.steps:,}, loss {mean:.4f}, {score()}")
                    losses, said = [], time.monotonic()
                if now - saved > SAVED_SECONDS:
                    self._save(asked)
                    saved = time.monotonic()
                if self._agreed(now - began >= seconds):
                    break
        finally:
            self._save(asked)
        return self.step >= self.recipe.steps

    def _fit_steps(self, loss: BatchLoss, began: float) -> None:
        """Set the number of steps to what fits the recipe's minutes, by trial steps that are taken back."""
        weights = {name: part.clone() for name, part in self.slim.state_dict().items()}
        recipe, self.recipe = self.recipe, replace(self.recipe, steps=ENDLESS)
        for count in (TRIED, TIMED):
            tried = time.monotonic()
            for _ in range(count):
                last = self._step(loss)
            last.item()
        each = (time.monotonic() - tried) / TIMED  # seconds of a step, in the mean
        left = 60 * recipe.minutes - (time.monotonic() - began)
        steps = self._agreed(max(1, int(left / each)))
        self.slim.load_state_dict(weights)
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                torch._foreach_zero_(list(state.values()))  # in place, as the graph of filters writes there
        self.step, self.recipe = 0, replace(recipe, steps=steps)

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu)

    def _ask(self, say: Callable[[str], None]) -> None:
        """Have the full network answer all images once, where memory holds its answers."""
        began = time.monotonic()

        def shares(inputs: Tensor) -> Tensor:
            with torch.no_grad(), self._autocast():
                return of_two(self.full(inputs.contiguous(memory_format=self.layout))).softmax(1)

        classes, size = shares(self.batches.inputs(slice(1))).shape[1], self.recipe.batch
        asked = torch.compile(shares) if self.on_gpu else shares
        if left_out := self.batches.choose_views(asked, size):
            say(f"note: the full network sees other classes in {left_out} turned or mirrored views: they are left out")
        if self.batches.ask(asked, classes, size):
            say(f"the full network's answers took {time.monotonic() - began:.0f} s")
        else:
            say("note: the full network's answers take too much memory, so each step asks it anew, in one view")

    def _loss(self) -> BatchLoss:
        """Return the loss of a batch: CUDA graphs on a GPU; several GPUs average their gradients."""
        called: Any = self.slim
        if PROCESSES > 1:
            called = DistributedDataParallel(called, device_ids=[self.device.index] if self.on_gpu else None)
        asks = self.batches.answers is None and not self.recipe.by_labels_alone

        def loss(inputs: Tensor, labels: Tensor | None, wanted: Tensor | None) -> Tensor:
            with self._autocast():
                if asks:
                    with torch.no_grad():
                        wanted = self.full(inputs)
                answer = called(inputs)
            return loss_of(answer, wanted, labels)

        return torch.compile(loss, mode="reduce-overhead" if PROCESSES == 1 else None) if self.on_gpu else loss

    def _step(self, loss_of_batch: BatchLoss) -> Tensor:
        """Train one step and return its loss; the rate soon reaches its peak, and falls evenly to 0."""
        recipe, done = self.recipe, self.step / self.recipe.steps
        rate = self.peak * min(1.0, (done + 1 / recipe.steps) / WARM_UP) * (1 - done)
        torch.manual_seed((recipe.seed + 1_000_003 * self.step) % 2**63)  # of dropout
        strength = max(0.0, 1 - done / FADE)
        inputs, labels, answers = self.batches.drawn(self.step, recipe.batch, (RANK, PROCESSES), strength)
        if self.on_gpu:
            torch.compiler.cudagraph_mark_step_begin()
        self.slim.train()
        loss = loss_of_batch(inputs.contiguous(memory_format=self.layout), labels, answers)
        self.slim.zero_grad()
        loss.backward()
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        if self.filters:
            self.filters.take(FILTERS_TIMES * rate)
        self.step += 1
        return loss.detach().clone()  # the next replay of a graph writes there

    def _agreed(self, value: int) -> int:
        """Return a figure of this process's clock; of several processes that of the first one."""
        if PROCESSES == 1:
            return value
        first = torch.tensor(value, device=self.device, dtype=torch.int64)
        torch.distributed.broadcast(first, 0)
        return int(first)
