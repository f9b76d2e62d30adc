"""A module for each activation of the table, and some that no kernel ends in."""

from torch import nn

from pipeline.kernels.common.activation import Activation

MODULES: list[tuple[nn.Module, Activation | None]] = [
    (nn.ReLU(), Activation("relu")),
    (nn.ReLU(inplace=True), Activation("relu")),
    (nn.LeakyReLU(), Activation("leaky_relu", 0.01)),
    (nn.LeakyReLU(0.2), Activation("leaky_relu", 0.2)),
    (nn.LeakyReLU(inplace=True), Activation("leaky_relu", 0.01)),
    (nn.SiLU(), Activation("silu")),
    (nn.GELU(), Activation("gelu")),
    (nn.GELU(approximate="tanh"), Activation("gelu_tanh")),
    (nn.ELU(0.5), Activation("elu", 0.5)),
    (nn.Hardswish(), Activation("hardswish")),
    (nn.Mish(), Activation("mish")),
    (nn.PReLU(4), Activation("prelu")),
    (nn.PReLU(1), Activation("prelu")),
    (nn.SELU(), None),
    (nn.ReLU6(), None),
]
