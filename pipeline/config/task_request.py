"""What the net's answer is, as it is asked for: the keys of conf/task."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from pipeline.config.data_request import TENSORS
from pipeline.config.groups import read_group
from pipeline.config.request_error import RequestError
from pipeline.records.request import DataSpec
from pipeline.records.tasks import Prediction, Schedule, Task, TaskName

MOST_STEPS = 1000  # that the schedule of noise has


@dataclass(frozen=True)
class TaskKnobs:
    """The keys as they are typed."""

    name: TaskName
    data_range: float | None = None
    steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 10
    timestep: str = "timestep"
    schedule: Schedule = "scaled_linear"
    prediction: Prediction = "epsilon"


def read_task(value: Mapping[str, object], data: DataSpec) -> Task:
    """The task that is asked for.

    Raises:
        RequestError: a value that isn't admitted, or data that the task can't be judged on.
    """
    knobs = read_group(TaskKnobs, "task", value)
    if knobs.data_range is not None and knobs.data_range <= 0:
        raise RequestError(f"task.data_range={knobs.data_range:g}: expected a number above 0, or null")
    if knobs.name == "diffusion" and data.name != TENSORS:
        raise RequestError(
            f"task=diffusion: data={data.name} gives a net one input, and a denoising loop counts a second one; add "
            "data=tensors data.path=inputs.safetensors"
        )
    if knobs.name != "segmentation" and data.labels and data.name != TENSORS:
        raise RequestError(
            f"data.labels={data.labels}: task={knobs.name} isn't judged by masks; leave it out, or give what is right "
            "as a tensor: data=tensors"
        )
    if knobs.name == "diffusion" and data.labels:
        raise RequestError(f"data.labels={data.labels}: task=diffusion is judged by its own loop in fp32; leave it out")
    return Task(knobs.name, knobs.data_range, knobs.steps, knobs.timestep, knobs.schedule, knobs.prediction)
