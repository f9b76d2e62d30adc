"""How the time grows with the images' pixels, on a clock that the net itself moves."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.batch import batched
from pipeline.profiling.collect import image_growth
from pipeline.records.diagnostics import ImageGrowth
from pipeline.stages import Runner


class Watch:
    time = 0.0

    def now(self) -> float:
        return self.time

    def synchronize(self) -> None:
        """Nothing is queued."""


class Timed(nn.Module):
    """Takes `fixed` seconds and so many more for each pixel of its batch; in every other round twice as long."""

    def __init__(self, watch: Watch, fixed: float, per_pixel: float) -> None:
        super().__init__()
        self.watch, self.fixed, self.per_pixel, self.calls = watch, fixed, per_pixel, 0

    def forward(self, batch: Tensor) -> Tensor:
        assert batch.is_contiguous()
        disturbed = 1 + self.calls // 2 % 2
        self.watch.time += disturbed * (self.fixed + self.per_pixel * batch[:, 0].numel())
        self.calls += 1
        return batch


def grown(batch: Tensor, fixed: float = 3.0, per_pixel: float = 1.0, **fields: object) -> ImageGrowth | None:
    watch = Watch()
    net = Timed(watch, fixed, per_pixel)
    stage = Runner(net, "", **{"module": net, **fields})  # type: ignore[arg-type]
    return image_growth(stage.of_batches, batched(batch), watch)  # type: ignore[arg-type]


def test_a_quarter_and_the_whole_are_timed() -> None:
    """The whole batch both times: of two images of 4×6 pixels, 3 s and one for each pixel, undisturbed."""
    found = grown(torch.zeros(2, 3, 4, 6))
    assert found is not None
    assert found.pixels == [6, 24]
    assert found.seconds == [pytest.approx(3 + 12), pytest.approx(3 + 48)]


def test_short_calls_are_many() -> None:
    """Five rounds of 3 µs would be over before another program is."""
    watch = Watch()
    net = Timed(watch, 3e-6, 0.0)
    image_growth(Runner(net, "", module=net).of_batches, batched(torch.zeros(1, 3, 4, 4)), watch)  # type: ignore[arg-type]
    assert watch.time == pytest.approx(0.2, rel=0.01)
    assert net.calls > 10_000


def test_images_that_cannot_be_halved_and_stages_of_one_shape_have_none() -> None:
    even = torch.zeros(1, 3, 4, 4)
    assert grown(torch.zeros(1, 3, 5, 4)) is None
    assert grown(torch.zeros(1, 3, 4, 5)) is None
    assert grown(even, uncaptured=torch.relu) is None
    assert grown(even, module=None) is None


def test_a_net_that_takes_no_smaller_image_says_so() -> None:
    net = nn.Conv2d(3, 3, 3)
    with pytest.raises(RuntimeError, match="size"):
        image_growth(Runner(net, "", module=net).of_batches, batched(torch.zeros(1, 3, 4, 4)), Watch())  # type: ignore[arg-type]
