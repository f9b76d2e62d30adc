"""How the data lie that convolutions read, as torch's dispatcher shows it: images, and volumes alike."""

import pytest
import torch
from torch import nn

from pipeline.profiling.observed_execution import Seen
from pipeline.profiling.operators import Dispatched

NETS = {4: nn.Conv2d(4, 4, 3), 5: nn.Conv3d(4, 4, 3)}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("axes", [4, 5])
def test_the_layout_that_a_convolution_reads_is_seen(axes: int) -> None:
    batch = torch.zeros(1, 4, *[4] * (axes - 2))
    for layout, given in (("NCHW", batch), ("NHWC", batch.to(memory_format=CHANNELS_LAST[axes]))):
        seen = Seen()
        with torch.inference_mode(), Dispatched(seen.see):
            NETS[axes](given)
        assert seen.layout == layout
