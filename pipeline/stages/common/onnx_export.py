"""Exports the net to ONNX and checks the file before any session sees it."""

import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.half import AsItLies
from pipeline.compiler.network_calls import exportable

OUTPUT = "logits"


class BiasApart(nn.ConvTranspose2d):
    """A transposed convolution whose bias is an addition of its own.

    ONNX Runtime's CUDA provider can't build a transposed convolution with its bias by cuDNN's frontend (1.31: "output
    dimension inferencing is not possible"), and adds it by a slow general kernel otherwise.
    """

    def forward(self, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As the convolution's, of [batch, in, height, width]; where a size is asked for, the convolution's own."""
        if output_size is not None or self.bias is None:
            return super().forward(image, output_size)
        how: Any = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        raised = nn.functional.conv_transpose2d(image, self.weight, None, *how)
        return raised + self.bias[:, None, None]


class Borders(AsItLies):
    """The net in another precision, with the casts inside the graph: fp32 comes in, the net's precision goes out."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, inputs: Batch) -> None:
        super().__init__(model, dtype, inputs)
        if inputs.is_cuda:
            biases_apart(self.net)


def biases_apart(net: nn.Module) -> nn.Module:
    """The net itself, changed: every plain transposed convolution is a `BiasApart` with the same weights."""
    for part in net.modules():
        if type(part) is nn.ConvTranspose2d:
            part.__class__ = BiasApart
    return net


class Written(NamedTuple):
    """What there is to say of an exported file.

    Attributes:
        opset: of its operators.
        and_casts: what a description adds where the net's own fp32 values are cast.
    """

    opset: int
    and_casts: str


def export(
    model: nn.Module,
    dtype: torch.dtype,
    batch: Tensor | Batch,
    path: Path,
    dynamic: Sequence[int] = (),
    around: Callable[[nn.Module], nn.Module] = lambda net: net,
    inputs: Batch | None = None,
) -> Written:
    """Write the net as ONNX, checked by onnx.checker, for batches of this shape: [batch, channels, height, width].

    Args:
        model: in eval mode, fp32.
        dtype: in which the net is to run.
        batch: an input, or all of them with their names.
        path: of the file.
        dynamic: the axes of the input that may have other lengths, where torch.export finds that the net allows it.
        around: puts more into the graph, before the net and after it; `batch` is then what that takes.
        inputs: what the net itself takes then.

    Returns:
        The opset, and what is said of casts.

    Raises:
        onnx.checker.ValidationError: the exporter wrote a file that isn't valid ONNX.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    path.parent.mkdir(parents=True, exist_ok=True)
    given = batched(batch)
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad(), exportable(may_set_weights=True):
        warnings.simplefilter("ignore", FutureWarning)  # the exporter's own use of what its torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        exported = around(net := Borders(model, dtype, inputs or given).eval())
        axes = (dict.fromkeys(dynamic, torch.export.Dim.AUTO),) if dynamic else None
        program = torch.onnx.export(exported, (*given.clone(),), dynamo=True, input_names=[*given.names],
                                    output_names=[OUTPUT], verbose=False, dynamic_shapes=axes)  # fmt: skip
    assert program is not None
    program.save(str(path))
    onnx.checker.check_model(str(path), full_check=True)
    return Written(_opset_of(path), net.and_casts)


def _opset_of(path: Path) -> int:
    return next(int(entry.version) for entry in onnx.load(str(path), load_external_data=False).opset_import)


def layers_of(path: Path, *operators: str) -> dict[str, str]:
    """Of an exported model, the module path of each node of these operators to the node's name.

    torch's exporter writes the scopes of a node as "['', 'net', 'net.head', 'conv2d']"; the last but one is the module.
    """
    found = {}
    for node in onnx.load(str(path), load_external_data=False).graph.node:
        if node.op_type in operators:
            scopes = next((part.value for part in node.metadata_props if part.key.endswith("name_scopes")), "")
            names = re.findall(r"'([^']*)'", scopes)
            found[names[-2].removeprefix("net.") if len(names) > 1 else node.name] = node.name
    return found
