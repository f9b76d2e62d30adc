"""Models in ONNX with quantize-dequantize pairs (QDQ), their scales from the user's images."""

import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.compiler.batch import IMAGE
from pipeline.stages.api import Workload
from pipeline.stages.common.onnx_export import export, layers_of

Method = Literal["MinMax", "Entropy", "Percentile"]
Kind = Literal["int8", "int8 symmetric", "fp8"]


class Quantizer:
    """Makes models of one net with fewer bits; the ranges of its values are found once.

    Attributes:
        layers: the module path of each layer that can be quantized to its node's name.
        opset: of the models.
    """

    def __init__(
        self, workload: Workload, batches: list[Tensor], kind: Kind, operators: list[str],
        method: Method = "MinMax", reduce_range: bool = False,
    ) -> None:  # fmt: skip
        """Export the net.

        Args:
            workload: gives the net and the folder.
            batches: [batch, channels, height, width], which give the ranges.
            kind: of the values.
            operators: of ONNX, that are quantized.
            method: how a range is taken from the values.
            reduce_range: weights of 7 bits.
        """
        self.folder, self.batches, self.kind, self.operators = workload.folder, batches, kind, operators
        self.method, self.reduce_range = "Distribution" if kind == "fp8" else method, reduce_range
        self.exported = workload.folder / "fp32.onnx"
        self.opset = export(workload.model, torch.float32, workload.batches[0], self.exported)
        self.layers = layers_of(self.exported, *operators)

    def quantized(self, kept: list[str]) -> Path:
        """The model with these layers in fp32, written to model.onnx."""
        from onnxruntime import quantization

        path, root = self.folder / "model.onnx", logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # it asks for a pre-processing that torch's exporter has done
        try:
            quantization.quantize_static(
                str(self.exported), str(path), Images(self.batches),
                op_types_to_quantize=self.operators, nodes_to_exclude=[self.layers[name] for name in kept],
                per_channel=self.kind != "fp8", reduce_range=self.reduce_range,
                calibrate_method=quantization.CalibrationMethod[self.method],
                calibration_cache_path=str(self.folder / "ranges.json"),
                **types(quantization.QuantType, self.kind),
            )  # fmt: skip
        finally:
            root.setLevel(level)
        return path


def types(of: Any, kind: Kind) -> dict[str, object]:
    """The quantizer's arguments for a kind; `of` is ONNX Runtime's QuantType."""
    if kind == "fp8":
        return {"activation_type": of.QFLOAT8E4M3FN, "weight_type": of.QFLOAT8E4M3FN}
    if kind == "int8":
        return {"activation_type": of.QUInt8, "weight_type": of.QInt8}
    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    return {"activation_type": of.QInt8, "weight_type": of.QInt8, "extra_options": symmetric}


class Images:
    """Batches [batch, channels, height, width] as ONNX Runtime's calibration reads them: one after the other."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.left = iter(batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch by the input's name; None after the last."""
        batch = next(self.left, None)
        return None if batch is None else {IMAGE: batch.cpu().numpy()}

    def __iter__(self) -> "Images":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        found = self.get_next()
        if found is None:
            raise StopIteration
        return found
