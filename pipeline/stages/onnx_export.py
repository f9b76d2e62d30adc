"""Exports the net to ONNX and checks the file before any session sees it."""

import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from pipeline.stages.casting import folded

INPUT, OUTPUT = "image", "logits"


class BiasApart(nn.Module):
    """A transposed convolution whose bias is an addition of its own.

    ONNX Runtime's CUDA provider can't build a transposed convolution with its bias by cuDNN's frontend (1.31: "output
    dimension inferencing is not possible"), and adds it by a slow general kernel otherwise.
    """

    def __init__(self, conv: nn.ConvTranspose2d) -> None:
        super().__init__()
        assert conv.bias is not None
        self.bias = nn.Parameter(conv.bias.detach()[:, None, None])
        conv.bias = None
        self.conv = conv

    def forward(self, image: Tensor) -> Tensor:
        """As the convolution's."""
        raised: Tensor = self.conv(image)
        return raised + self.bias


class Borders(nn.Module):
    """The net in another precision, with the casts inside the graph: fp32 comes in, the net's precision goes out."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, on_gpu: bool) -> None:
        super().__init__()
        net, _ = folded(model)
        self.net = (biases_apart(net) if on_gpu else net).to(dtype)
        self.dtype = dtype

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, classes, height, width] of an image [batch, channels, height, width] in fp32."""
        logits: Tensor = self.net(image.to(self.dtype))
        return logits


def biases_apart(net: nn.Module) -> nn.Module:
    """The net itself, changed: every transposed convolution with a bias is a `BiasApart`, under all of its names."""
    named = list(net.named_modules(remove_duplicate=False))
    biased = {part for _, part in named if isinstance(part, nn.ConvTranspose2d) and part.bias is not None}
    apart: dict[nn.Module, nn.Module] = {part: BiasApart(part) for part in biased}
    for name, part in named:
        if name and part in apart:
            net.set_submodule(name, apart[part])
    return apart.get(net, net)


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
        twin = Borders(model, dtype, batch.is_cuda).eval()
        program = torch.onnx.export(
            twin, (batch.clone(),), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
    assert program is not None
    program.save(str(path))
    onnx.checker.check_model(str(path), full_check=True)
    return next(int(entry.version) for entry in onnx.load(str(path), load_external_data=False).opset_import)
