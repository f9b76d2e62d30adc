"""Training of a slim network by the full one: its logits, and labels where there are any (Hinton et al., 2015)."""

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from models.training import CHANNELS, LEARNING_RATE, first_layer
from pipeline.compiler.batch import CHANNELS_LAST
from pipeline.errors import InputError
from pipeline.slim.pictures import Batches

BY_LABELS = 0.5  # weight of the labels beside the full network
WARM_UP = 0.05  # share of the steps in which the rate rises
FADE = 0.5  # share of the steps by whose end tint and noise are gone: the last images are as the held-out ones
SAID_SECONDS, SAVED_SECONDS = 15.0, 60.0
DECAY = 1e-4
BatchLoss = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Recipe:
    """The settings of a training; the same ones give the same weights on a CPU."""

    share: str  # of the full network's widths, in words
    steps: int
    batch: int  # images a step, of all GPUs together
    seed: int  # of weights and batches
    by_labels_alone: bool = False  # without the full network, to see what it is worth


def loss_of(answer: Tensor, wanted: Tensor | None, labels: Tensor | None) -> Tensor:
    """Return how far logits [batch, classes, ...] are from the full network's, and from the labels [batch, ...]."""
    loss = answer.new_zeros(())
    if answer.shape[1] == 1:  # of two classes
        answer = torch.cat([torch.zeros_like(answer), answer], 1)
        wanted = None if wanted is None else torch.cat([torch.zeros_like(wanted), wanted], 1)
    if wanted is not None:
        shares = answer.log_softmax(1), wanted.log_softmax(1)
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


def rank() -> int:
    """Return the number of this process among those of several GPUs; 0 of one alone."""
    return int(os.environ.get("RANK", "0"))


def rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: up to `peak` in a few steps, then down to 0 along half a cosine."""
    done = step / steps
    return peak * min(1.0, (done + 1 / steps) / WARM_UP) * (1 + math.cos(math.pi * done)) / 2


class Training:
    """A slim network's training: resumed from its checkpoint where there is one."""

    def __init__(self, slim: nn.Module, full: nn.Module, batches: Batches, recipe: Recipe, checkpoint: Path) -> None:
        self.recipe, self.batches, self.checkpoint = recipe, batches, checkpoint
        self.device, self.on_gpu = batches.device, batches.device.type == "cuda"
        self.layout = CHANNELS_LAST.get(batches.images.ndim) if self.on_gpu else None
        self.full = self._laid_out(full.eval().requires_grad_(False))
        self.slim = self._laid_out(slim.requires_grad_())
        first = first_layer(slim)
        self.peak = LEARNING_RATE * CHANNELS / max(first.out_channels if first else CHANNELS, CHANNELS)
        self.optimizer = torch.optim.AdamW(slim.parameters(), weight_decay=DECAY, fused=self.on_gpu)
        self.rank, self.world = rank(), int(os.environ.get("WORLD_SIZE", "1"))
        self.step = 0

    def _laid_out(self, net: nn.Module) -> nn.Module:
        net.to(self.device)
        return net if self.layout is None else net.to(memory_format=self.layout)  # type: ignore[call-overload, no-any-return, unused-ignore]

    def _resume(self, asked: str) -> None:
        """Load the checkpoint if there is one; raise InputError if it is of another request, or can't be read."""
        if not self.checkpoint.exists():
            return
        try:
            kept = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            same = kept["asked"] == asked
        except Exception as error:  # noqa: BLE001 - the unpickler raises any type
            raise InputError(f"{self.checkpoint}: can't be read ({error}); remove it to begin again") from None
        if not same:
            raise InputError(f"{self.checkpoint}: it is of another training; name another --out, or remove it")
        self.slim.load_state_dict(kept["slim"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.step = kept["step"]

    def _save(self, asked: str) -> None:
        """Write the checkpoint; an earlier one stays until this one is whole."""
        if self.rank == 0:
            scratch = self.checkpoint.with_suffix(".part")
            states = {"slim": self.slim.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({"asked": asked, "step": self.step, **states}, scratch)
            scratch.replace(self.checkpoint)

    def run(self, asked: str, seconds: float, say: Callable[[str], None], score: Callable[[], str]) -> bool:
        """Train until the last step or the time's end, and return whether all steps are done.

        The checkpoint is of the request `asked`; `score` tells how good the slim network is so far.
        """
        self._resume(asked)
        if self.step:
            say(f"resumed at step {self.step:,}")
        began = said = saved = time.monotonic()
        loss, losses = self._compiled(), list[Tensor]()
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
                if self._is_over(now - began >= seconds):
                    break
        finally:
            self._save(asked)
        return self.step >= self.recipe.steps

    def _compiled(self) -> BatchLoss:
        """Return the loss of a batch and its labels: CUDA graphs on a GPU; several GPUs average their gradients."""
        called: Any = self.slim
        if self.world > 1:
            called = DistributedDataParallel(called, device_ids=[self.device.index] if self.on_gpu else None)

        def loss(inputs: Tensor, labels: Tensor | None) -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
                with torch.no_grad():
                    wanted = None if self.recipe.by_labels_alone else self.full(inputs).float()
                answer = called(inputs)
            return loss_of(answer.float(), wanted, labels)

        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")  # of its own choices
        torch.backends.cudnn.benchmark = self.on_gpu
        return torch.compile(loss, mode="reduce-overhead" if self.world == 1 else None) if self.on_gpu else loss

    def _step(self, loss_of_batch: BatchLoss) -> Tensor:
        recipe = self.recipe
        torch.manual_seed((recipe.seed + 1_000_003 * self.step) % 2**63)  # of dropout
        strength = max(0.0, 1 - self.step / (FADE * recipe.steps))
        inputs, labels = self.batches.drawn(self.step, recipe.batch, (self.rank, self.world), strength)
        if self.layout is not None:
            inputs = inputs.contiguous(memory_format=self.layout)
            torch.compiler.cudagraph_mark_step_begin()
        self.optimizer.param_groups[0]["lr"] = rate(self.step, recipe.steps, self.peak)
        self.slim.train()
        loss = loss_of_batch(inputs, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach().clone()  # the next replay of a graph writes there

    def _is_over(self, over: bool) -> bool:
        """Return whether this call's time is over, by the first process's clock."""
        if self.world == 1:
            return over
        flag = torch.tensor(int(over), device=self.device)
        torch.distributed.broadcast(flag, 0)
        return bool(flag.item())
