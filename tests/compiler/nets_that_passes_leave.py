"""Small nets that look like what a pass rewrites, and aren't: by the pass and what is otherwise."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.compiler.further_nets import Late


def raised(value: Tensor) -> Tensor:
    return functional.interpolate(value, scale_factor=2)


class Made(nn.Module):
    def __init__(self, call: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs, *self.layers)


def conv(inner: int, outer: int, size: Any = 3, **options: Any) -> nn.Conv2d:
    padding = options.pop("padding", None)
    return nn.Conv2d(inner, outer, size, padding=size // 2 if padding is None else padding, **options)


def second(**options: Any) -> nn.Module:
    return Made(lambda x, first, last: last(first(x)), conv(3, 16, 1), conv(16, 16, **options))


def squeezed(gate: Callable[[Tensor], Tensor], axes: tuple[int, ...] = (2, 3), end: Any = functional.relu) -> nn.Module:
    """A map by factors of its own mean, the end of a block."""

    def call(x: Tensor, made: nn.Module, one: nn.Module, other: nn.Module) -> Tensor:
        value = end(made(x))
        return value * gate(other(functional.relu(one(value.mean(axes, keepdim=True)))))

    return Made(call, conv(3, 32), conv(32, 4, 1), conv(4, 32, 1))


CASES: dict[str, Callable[[], nn.Module]] = {
    "drop_identities: another layout": lambda: Made(
        lambda x, c: c(x).permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format), conv(3, 16)),
    "drop_identities: two values": lambda: Made(lambda x, c: torch.cat([c(x), x], 1), conv(3, 16)),
    "drop_empty_parts: of all": lambda: Made(lambda x, c: c(x) + torch.cat([x[:, :0], x[:, :0]], 1).sum(), conv(3, 16)),
    "drop_empty_parts: another type": lambda: Made(lambda x, c: torch.cat([c(x), x[:, :0].double()], 1), conv(3, 16)),
    "fold_padding: other sides": lambda: Made(lambda x, c: c(functional.pad(x, (0, 1, 0, 1))), conv(3, 16, padding=0)),
    "fold_padding: another value": lambda: Made(
        lambda x, c: c(functional.pad(x, (1, 1, 1, 1), value=2.0)), conv(3, 16, padding=0)),
    "fold_padding: a copy of the border": lambda: Made(
        lambda x, c: c(functional.pad(x, (1, 1, 1, 1), mode="replicate")), conv(3, 16, padding=0)),
    "fold_padding: it is read twice": lambda: Made(
        lambda x, c: (lambda y: c(y) + y[:, :1, 1:-1, 1:-1])(functional.pad(x, (1, 1, 1, 1))), conv(3, 16, padding=0)),
    "fold_padding: of three axes": lambda: Made(lambda x, c: c(functional.pad(x, (0, 0, 0, 0, 1, 0))), conv(4, 16)),
    "fold_padding: cut off": lambda: Made(lambda x, c: c(functional.pad(x, (-1, -1, -1, -1))), conv(3, 16)),
    "add_parallel_convolutions: of others": lambda: Made(
        lambda x, a, b: a(x) + b(x.tanh()), conv(3, 16), conv(3, 16, 1)),
    "add_parallel_convolutions: one is read again": lambda: Made(
        lambda x, a, b: (lambda y: (a(x) + y) * y)(b(x)), conv(3, 16), conv(3, 16, 1)),
    "add_parallel_convolutions: neither window holds the other": lambda: Made(
        lambda x, a, b: a(x) + b(x), conv(3, 16, (3, 1), padding=(1, 0)), conv(3, 16, (1, 3), padding=(0, 1))),
    "add_parallel_convolutions: other groups": lambda: Made(
        lambda x, a, b: a(x) + b(x), conv(3, 15, groups=3), conv(3, 15, 1)),
    "add_parallel_convolutions: between the taps": lambda: Made(
        lambda x, a, b: a(x) + b(x), conv(3, 16, 3, padding=2, dilation=2), conv(3, 16)),
    "add_parallel_convolutions: one by a factor": lambda: Made(
        lambda x, a, b: torch.add(a(x), b(x), alpha=2), conv(3, 16), conv(3, 16, 1)),
    "add_parallel_convolutions: broadcast": lambda: Made(lambda x, a, b: a(x) + b(x), conv(3, 16), nn.Conv2d(3, 16, 8)),
    "add_parallel_convolutions: the weight is computed": lambda: Made(
        lambda x, a, b: a(x) + functional.conv2d(x, b.weight * x.mean(), padding=1), conv(3, 16), conv(3, 16)),
    "add_parallel_convolutions: the input itself": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y)(a(x)), conv(3, 16), conv(16, 16)),
    "add_parallel_convolutions: by the batch itself": lambda: Made(
        lambda x, a, b, n: (lambda y: b(y) + n(y))(a(x)), conv(3, 16), conv(16, 16),
        nn.BatchNorm2d(16, track_running_stats=False)),
    "fold_batch_norm: the convolution is read twice": lambda: Made(
        lambda x, c, n: (lambda y: n(y) + y)(c(x)), conv(3, 16), nn.BatchNorm2d(16)),
    "fold_batch_norm: the convolution is transposed and grouped": lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 6, 3, padding=1, groups=3), nn.BatchNorm2d(6)),
    "fold_batch_norm: by the batch itself": lambda: nn.Sequential(
        conv(3, 16), nn.BatchNorm2d(16, track_running_stats=False)),
    "fold_batch_norm: the weight is computed": lambda: Made(
        lambda x, c, n: n(functional.conv2d(x, c.weight * (2 + x.mean()))), conv(3, 16), nn.BatchNorm2d(16)),
    "fold_batch_norm: in double precision": lambda: Made(
        lambda x, c, n: functional.batch_norm(
            functional.conv2d(x.double(), c.weight.double()), n.running_mean.double(), n.running_var.double()
        ).float(), conv(3, 16), nn.BatchNorm2d(16)),
    "fold_batch_norm: without a batch": lambda: Made(lambda x, c, n: n(c(x[0]))[None], conv(3, 8), nn.BatchNorm1d(8)),
    "fold_batch_norm: no convolution before it": lambda: Made(lambda x, n: n(x), nn.BatchNorm2d(3)),
    "pointwise_before_upsampling: an activation follows": lambda: Made(
        lambda x, a, b: b(raised(a(x))).relu(), conv(3, 16), conv(16, 16, 1)),
    "pointwise_before_upsampling: more channels": lambda: nn.Sequential(
        conv(3, 16), nn.Upsample(scale_factor=2), conv(16, 17, 1)),
    "pointwise_before_upsampling: a wider window": lambda: nn.Sequential(
        conv(3, 16), nn.Upsample(scale_factor=2), conv(16, 16)),
    "pointwise_before_upsampling: padded": lambda: nn.Sequential(
        conv(3, 16), nn.Upsample(scale_factor=2), conv(16, 16, 1, padding=1)),
    "pointwise_before_upsampling: to a smaller size": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=0.5, mode="bilinear")),
        conv(3, 16), conv(16, 16, 1)),
    "pointwise_before_upsampling: read twice": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y)(raised(a(x))), conv(3, 16), conv(16, 16, 1)),
    "norms_in_nhwc: no image": lambda: Made(lambda x, n: n(x.flatten(2))[..., None], nn.GroupNorm(3, 3)),
    "norms_in_nhwc: in double precision, for digits that fp32 hasn't": lambda: Made(
        lambda x, n: n(x.double() + 1e5).float(), nn.InstanceNorm2d(3)),
    "norms_in_nhwc: by running means": lambda: Made(lambda x, n: n(x), nn.InstanceNorm2d(3, track_running_stats=True)),
    "fold_activation: the convolution is read twice": lambda: Made(
        lambda x, c: (lambda y: functional.relu(y) + y)(c(x)), conv(3, 16)),
    "fold_activation: one that no kernel ends in": lambda: Made(lambda x, c: functional.softplus(c(x)), conv(3, 16)),
    "fold_activation: a form that no kernel has": lambda: Made(
        lambda x, c: torch.ops.aten.elu.default(c(x), 1.0, 2.0), conv(3, 16)),
    "fold_activation: slopes that its kernel hasn't": lambda: nn.Sequential(conv(3, 16), nn.PReLU(16)),
    "fold_residual: few channels of many": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y[:, :24].sin())(a(x)), conv(3, 48), conv(48, 24)),
    "fold_residual: read by what isn't an addition": lambda: Made(
        lambda x, a, b: (lambda y: b(y).chunk(1)[0] + y)(a(x)), conv(3, 64), conv(64, 64)),
    "fold_residual: one value for all pixels": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y.mean((2, 3), keepdim=True))(a(x)), conv(3, 64), conv(64, 64)),
    "fold_residual: a multiple of it": lambda: Made(
        lambda x, a, b: (lambda y: torch.add(b(y), y, alpha=2))(a(x)), conv(3, 64), conv(64, 64)),
    "sum_where_made: few channels": lambda: nn.Sequential(conv(3, 16), conv(16, 16, stride=2), nn.InstanceNorm2d(16)),
    "sum_where_made: one map plus a vector for each of two": lambda: Made(
        lambda x, a, b, n: (lambda y: n(y + torch.cat([y, y * y]).amax((2, 3), True)).sum(0, True))(b(a(x))),
        conv(3, 32), conv(32, 32), nn.GroupNorm(4, 32)),
    "sum_where_made: no layer before it": lambda: Made(lambda x, n: n(x.repeat(1, 32, 1, 1)), nn.GroupNorm(4, 96)),
    "fold_activation: no convolution before it": lambda: Made(lambda x, c: c(functional.silu(x)), conv(3, 16)),
    "take_conv3x3_dilated: padded as if its taps were neighbours": lambda: second(dilation=2, padding=1),
    "take_conv3x3_dilated: one way": lambda: second(dilation=(2, 1), padding=(2, 1)),
    "take_conv3x3_dilated: in groups": lambda: second(dilation=2, padding=2, groups=2),
    "take_conv3x3_dilated: with a stride": lambda: second(dilation=2, padding=2, stride=2),
    "take_conv3x3: dilated": lambda: second(dilation=2, padding=2),
    "take_conv3x3: strided": lambda: second(stride=2),
    "take_conv3x3: grouped": lambda: second(groups=16),
    "take_conv3x3_grouped: with a stride": lambda: second(groups=2, stride=2),
    "take_conv3x3_grouped: fewer channels than it takes": lambda: nn.Sequential(conv(3, 32, 1), conv(32, 16, groups=2)),
    "take_conv3x3: another padding": lambda: second(padding=2),
    "take_conv3x3: the weight is computed": lambda: Made(
        lambda x, a, b: functional.conv2d(a(x), b.weight * (2 + x.mean()), padding=1), conv(3, 16, 1), conv(16, 16)),
    "take_conv3x3: one dimension": lambda: Made(
        lambda x, a, b: b(a(x).flatten(2))[..., None], conv(3, 16, 1), nn.Conv1d(16, 16, 3, padding=1)),
    "take_conv3x3: channels in no multiple of 8": lambda: nn.Sequential(conv(3, 20, 1), conv(20, 16)),
    "take_conv_first: it isn't first": lambda: Made(lambda x, c: c(x * 2), conv(3, 16)),
    "take_conv_first: edges that go round": lambda: Made(
        lambda x, c: c(functional.pad(x, (2, 2, 2, 2), mode="circular")), conv(3, 16, 5, padding=0)),
    "take_head: edges of less than half of the window": lambda: Made(
        lambda x, a, h: h(functional.pad(a(x), (1, 1, 1, 1), mode="reflect")), conv(3, 16), conv(16, 2, 5, padding=0)),
    "take_conv_first: many channels": lambda: Made(lambda x, c: c(x.repeat(1, 5, 1, 1)), conv(15, 16)),
    "take_upconv2x2: a wider window": lambda: nn.Sequential(conv(3, 16, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)),
    "take_upconv2x2: channels in no multiple of 8": lambda: nn.Sequential(
        conv(3, 16, 1), nn.ConvTranspose2d(16, 12, 2, 2)),
    "pool_where_it_is_made: overlapping windows": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 3, 2, 1), conv(3, 16), conv(16, 16)),
    "pool_where_it_is_made: an odd size": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x[..., :7])), 2), conv(3, 16), conv(16, 16)),
    "pool_where_it_is_made: no convolution before it": lambda: Made(lambda x: functional.max_pool2d(x, 2)),
    "pool_where_it_is_made: the ceiling of a size": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 2, ceil_mode=True), conv(3, 16), conv(16, 16)),
    "pool_where_it_is_made: another stride": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 2, 1), conv(3, 16), conv(16, 16)),
    "fold_head: many classes": lambda: nn.Sequential(conv(3, 16), conv(16, 16), conv(16, 9, 1)),
    "fold_head: its input is read twice": lambda: Made(
        lambda x, a, b, h: (lambda y: h(y) + y[:, :2])(b(a(x))), conv(3, 16), conv(16, 16), conv(16, 2, 1)),
    "fold_head: the maxima are wanted": lambda: Made(
        lambda x, a, b, h: (lambda y: h(y) + functional.max_pool2d(y, 2).mean())(b(a(x))), conv(3, 16), conv(16, 16),
        conv(16, 2, 1)),
    "fold_head: its answer isn't the logits": lambda: Made(
        lambda x, a, b, h: h(b(a(x))).half() * 2, conv(3, 16), conv(16, 16), conv(16, 2, 1)),
    "take_head: too many classes": lambda: nn.Sequential(conv(3, 16), conv(16, 9, 1)),
    "take_head: a wider window": lambda: nn.Sequential(conv(3, 16), conv(16, 2, 11)),
    "take_head: its answer is no logits": lambda: Made(lambda x, a, h: h(a(x)).half() * 2, conv(3, 16), conv(16, 2)),
    "head_after_pointwise: its input is read twice": lambda: Made(
        lambda x, a, h: (lambda y: h(y) + y[:, :2])(a(x).tanh().relu()), conv(3, 16), conv(16, 2, 1)),
    "head_after_pointwise: after a layer": lambda: nn.Sequential(conv(3, 16), conv(16, 2, 1)),
    "head_after_pointwise: a wider window": lambda: Made(lambda x, a, h: h(a(x) * 2), conv(3, 16), conv(16, 2)),
    "take_conv3x3_few: many channels": lambda: nn.Sequential(conv(3, 16), conv(16, 8)),
    "take_transposed3x3_few: another window": lambda: nn.Sequential(conv(3, 16), nn.ConvTranspose2d(16, 2, 4, 2, 1)),
    "compose_upsampling: read twice": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y)(raised(a(x))), conv(3, 16), conv(16, 16)),
    "compose_upsampling: an activation between": lambda: Made(
        lambda x, a, u, b: b(u(a(x)).relu()), conv(3, 16), nn.ConvTranspose2d(16, 16, 2, 2), conv(16, 16)),
    "compose_upsampling: by three": lambda: nn.Sequential(conv(3, 16), nn.Upsample(scale_factor=3), conv(16, 16)),
    "compose_upsampling: then a stride": lambda: nn.Sequential(
        conv(3, 16), nn.Upsample(scale_factor=2), conv(16, 16, stride=2)),
    "compose_upsampling: a wider window": lambda: nn.Sequential(
        conv(3, 16), nn.ConvTranspose2d(16, 16, 4, 2, 1), conv(16, 16)),
    "compose_upsampling: the concatenation is read twice": lambda: Made(
        lambda x, a, b, c: (lambda y: c(y) + y.mean(1, keepdim=True))(torch.cat([raised(a(x)), b(raised(x))], 1)),
        conv(3, 16), conv(3, 16), conv(32, 16)),
    "compose_upsampling: beside channels in no multiple of 16": lambda: Made(
        lambda x, a, c: c(torch.cat([raised(a(x)), x.repeat(1, 1, 2, 2)], 1)), conv(3, 16), conv(19, 16)),
    "centre_windows: an odd size": lambda: Made(lambda x, late: late(x[..., 1:, 1:]), Late(3, 16, 3)),
    "centre_windows: in the net's middle, of all channels": lambda: nn.Sequential(conv(3, 16), Late(16, 16, 3)),
    "centre_windows: of 4 on an odd size": lambda: Made(
        lambda x, c: c(x[:, :, 1:]), conv(3, 16, 4, stride=2, padding=1)),
    "centre_windows: of 4 in the net's middle": lambda: nn.Sequential(
        conv(3, 16), conv(16, 16, 4, stride=2, padding=1)),
    "centre_windows: a pad of ones": lambda: Made(
        lambda x, c: c(functional.pad(x, (0, 1, 0, 1), value=1.0)), conv(3, 16, stride=2, padding=0)),
    "read_before_unshuffling: 4×4 pixels": lambda: nn.Sequential(nn.PixelUnshuffle(4), conv(48, 16)),
    "read_before_unshuffling: a stride": lambda: nn.Sequential(nn.PixelUnshuffle(2), conv(12, 16, stride=2)),
    "read_before_unshuffling: many channels": lambda: nn.Sequential(conv(3, 16), nn.PixelUnshuffle(2), conv(64, 16)),
    "excite_where_summed: another gate": lambda: squeezed(torch.tanh),
    "excite_where_summed: the mean of a row": lambda: squeezed(torch.sigmoid, (2,)),
    "excite_where_summed: no layer before the mean": lambda: squeezed(torch.sigmoid, end=torch.sin),
    "take_gated_conv1x1: a factor for each pixel": lambda: Made(
        lambda x, a, b: b(a(x) * x[:, :1]), conv(3, 16), conv(16, 16, 1)),
    "take_gated_conv1x1: a product that is read again": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y)(a(x) * x.mean((2, 3), True)[:, :1].expand(-1, 16, -1, -1)),
        conv(3, 16), conv(16, 16, 1)),
    "join_linear_layers: a weight is computed": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + functional.linear(y, b.weight * y.mean()))(a(x).mean((2, 3))), conv(3, 16),
        nn.Linear(16, 16)),
    "join_linear_layers: of two values": lambda: Made(
        lambda x, a, b: b(a(x).mean((2, 3))) + b(a(x).amax((2, 3))), conv(3, 16), nn.Linear(16, 16)),
    "take_tokens: one vector for each image": lambda: Made(
        lambda x, a, b: b(a(x).mean((2, 3))), conv(3, 16), nn.Linear(16, 16)),
    "take_tokens: by a vector": lambda: Made(lambda x, a: functional.linear(raised(a(x)), a.bias), conv(3, 16)),
    "multiply_patches: other windows": lambda: Made(
        lambda x, *convs: torch.cat([one(x).flatten(1) for one in convs], 1), nn.Conv2d(3, 8, (4, 3), (4, 3)),
        *[nn.Conv2d(3, 6, *how) for how in ((3, 3), (5, 4), (4, 4, 1), (4, 4, 0, 2), (4, 4, 0, 1, 3))],
        *[nn.ConvTranspose2d(3, 6, *how) for how in ((3, 3), (5, 4), (4, 4, 1), (4, 4, 0, 1), (4, 4, 0, 0, 3))],
        nn.ConvTranspose2d(3, 6, 4, 4, dilation=2)),
    "multiply_patches: the weight is computed": lambda: Made(
        lambda x, c: functional.conv2d(x, c.weight * x.mean(), stride=4), conv(3, 16, 4)),
    "take_upsample2x: corners aligned": lambda: Made(
        lambda x, a: functional.interpolate(a(x), scale_factor=2, mode="bilinear", align_corners=True), conv(3, 16)),
    "take_upsample2x: by three": lambda: Made(
        lambda x, a: functional.interpolate(a(x), scale_factor=3, mode="bilinear"), conv(3, 16)),
}  # fmt: skip
