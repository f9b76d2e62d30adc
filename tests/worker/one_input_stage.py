"""A stage as somebody writes it who has nets of one input."""

from torch import Tensor

from pipeline.stages.api import Runner, Workload


def build(workload: Workload) -> Runner:
    def run(image: Tensor) -> Tensor:
        answer: Tensor = workload.model(image)
        return answer

    return Runner(run, "fp32")
