"""How long a side is called before each of its samples, so that a GPU runs at the pace that it keeps in a service."""

import math
import time
from collections.abc import Callable
from typing import Protocol

from pipeline.measure.sampling import calls_per_sample
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample

# Of the power limit, from which the device is at its cap: a limit is met on average, readings vary by some per cent.
AT_CAP = 0.9


class PowerLimited(Protocol):
    """What a device says of its power; `pipeline.devices.nvml.Gpu` is one."""

    def watts(self) -> float | None:
        """Power, averaged over up to the last second."""

    def limit_watts(self) -> float | None:
        """What the device keeps to."""


class FullLoad:
    """The untimed calls before a side's samples.

    A GPU at its power cap has slowed down within a tenth of a second. But it may exceed the cap until its average has
    come up to it, where it rested meanwhile or ran another side, even one that is at the cap too: that one's average
    isn't this one's. Then a side at the cap is called for longer.
    """

    def __init__(
        self,
        plan: Plan,
        device: str,
        per_call: float,
        gpu: PowerLimited | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Arguments: the knobs, "cuda" or "cpu", seconds of a call, the GPU, where one is known, and a clock."""
        self.usual = calls_per_sample(per_call, plan.run_in_seconds(device), 0)
        self.rested = max(self.usual, math.ceil(plan.rested_run_in_seconds(device) / max(per_call, 1e-9)))
        self.gpu, self.now = gpu, now
        self.others_sample = plan.sample_seconds(device)  # the least that a sample of another side takes
        self.ended = -math.inf  # this side's last sample
        self.most_watts = math.inf  # that this side was seen to draw

    def run_in_calls(self) -> int:
        """How many calls come before the sample that begins now."""
        watts, limit = (self.gpu.watts(), self.gpu.limit_watts()) if self.gpu else (None, None)
        if watts is None or limit is None or self.most_watts < AT_CAP * limit:
            return self.usual
        another_ran = self.now() - self.ended >= self.others_sample
        return self.rested if another_ran or watts < AT_CAP * limit else self.usual

    def sampled(self, taken: Sample) -> Sample:
        """The sample that has just ended, after a look at what the device draws."""
        self.ended = self.now()
        if self.gpu is not None and (watts := self.gpu.watts()) is not None:
            self.most_watts = watts if math.isinf(self.most_watts) else max(self.most_watts, watts)
        return taken
