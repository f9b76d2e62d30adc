"""Exports the net to ONNX and checks the file before any session sees it."""

import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from pipeline.stages.casting import folded

INPUT, OUTPUT = "image", "logits"


class Borders(nn.Module):
    """The net in another precision, with the casts inside the graph: fp32 comes in, the net's precision goes out."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        net, self.folds = folded(model)
        self.net = net.to(dtype)
        self.dtype = dtype

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, classes, height, width] of an image [batch, channels, height, width] in fp32."""
        logits: Tensor = self.net(image.to(self.dtype))
        return logits


def export(model: nn.Module, dtype: torch.dtype, batch: Tensor, path: Path) -> int:
    """Write the net as ONNX for batches of this shape, checked by onnx.checker; returns the opset.

    Raises:
        onnx.checker.ValidationError: the exporter wrote a file that isn't valid ONNX.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)  # the exporter's own use of what its torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        twin = Borders(model, dtype).eval()
        program = torch.onnx.export(
            twin, (batch.clone(),), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
    assert program is not None
    program.save(str(path))
    onnx.checker.check_model(str(path), full_check=True)
    return next(int(entry.version) for entry in onnx.load(str(path), load_external_data=False).opset_import)
