"""What a net's answer is, and so what it is judged by: the files of conf/task."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

TaskName = Literal["segmentation", "regression", "diffusion"]
Schedule = Literal["linear", "scaled_linear", "cosine"]
Prediction = Literal["epsilon", "sample", "v_prediction"]


@dataclass(frozen=True)
class Task:
    """The task and its knobs.

    Attributes:
        name: segmentation: logits of classes, judged by masks; regression: values, judged by their distance;
            diffusion: noise or what stands for it, judged by one step and by a whole denoising loop.
        data_range: of regression: largest value minus smallest, for the PSNR; None is that of the fp32 net's answers.
        steps: of diffusion: of the denoising loop.
        timestep: of diffusion: the net's input that the loop counts.
        schedule: of diffusion: how the noise grows over the 1000 steps of training.
        prediction: of diffusion: what the net answers with.
    """

    name: TaskName = "segmentation"
    data_range: Annotated[float, Meta(gt=0)] | None = None
    steps: Annotated[int, Meta(ge=1, le=1000)] = 10
    timestep: str = "timestep"
    schedule: Schedule = "scaled_linear"
    prediction: Prediction = "epsilon"

    @property
    def has_masks(self) -> bool:
        """Whether the answer is classes, so that masks, Dice and pixels that change class mean something."""
        return self.name == "segmentation"


SEGMENTATION = Task()
