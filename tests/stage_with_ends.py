"""A stage in fp32 that takes images and gives classes, as `fused` and `fp8` do on a GPU."""

from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.ends import stage_ends
from pipeline.stages.common.network_forms import eager_execution


def build(workload: Workload, *, uint8_in: bool = False, classes_out: bool = False) -> Runner:
    """Run the network unchanged, between its ends."""
    ends = stage_ends(workload, uint8_in, classes_out)
    return Runner(ends.whole(workload.model), "fp32", eager_execution("fp32", "NCHW"), ends=ends)
