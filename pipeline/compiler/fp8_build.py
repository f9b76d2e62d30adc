"""The driver for fp8 (e4m3): scales, and layers that stay in fp16, measured on images; then the fastest candidate."""

import hashlib
import math
import traceback
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from pipeline.compiler import driver
from pipeline.compiler.agreement import Budget, filled
from pipeline.compiler.batch import Batch, batched, of_batches
from pipeline.compiler.candidate import Candidate
from pipeline.compiler.errors import CompileError, typed_line
from pipeline.compiler.graph import fp8_values
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import WHOLE, layers, shape_of
from pipeline.compiler.graph.layers import UpsampledLayer, inputs_of, layer_calls, maps_of
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.half import Precision, layers_within
from pipeline.compiler.network_calls import untimed_library
from pipeline.kernels.common.capability import barred_on


def largest(net: ExportedNet, batches: Sequence[Tensor | Batch]) -> dict[str, float]:
    """Return the largest magnitude over batches of every value that could be in fp8, by its node's name."""
    walk = _Largest(net)
    for batch in batches:
        walk.run(*batched(batch))
    return {name: float(amount) for name, amount in walk.seen.items()}


class _Largest(fx.Interpreter):
    def __init__(self, net: ExportedNet) -> None:
        super().__init__(net.module)
        self.wanted = set().union(*fp8_values.fp8_groups(net, []))
        self.seen: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if n in self.wanted:
            amount = value.abs().amax().float()
            self.seen[n.name] = torch.maximum(amount, self.seen.get(n.name, amount))
        return value


def keep_for(
    net: ExportedNet, seen: dict[str, float], batches: Sequence[Tensor | Batch], budget: Budget
) -> tuple[list[str], dict[str, float]]:
    """Return the layers to keep in fp16 so that the budget holds on batches, as `filled`; the references compute."""
    given = list(map(batched, batches))
    exact = list(map(of_batches(lower(net, Plan())), given))

    def cost(keep: list[str]) -> float:
        run: Callable[[Batch], Tensor] = of_batches(lower(net, Plan(fp8_values.scales(net, keep, seen))))
        return budget.used(run, given, exact)

    def price(keep: list[str]) -> float:
        return least_seconds(net, fp8_values.scales(net, keep, seen))

    return filled(fp8_values.quantisable_together(net), cost, price)


# An H200's: FLOP/s of one product at its power cap, bytes/s of a copy (docs/kernels.md). Only what one layer takes
# beside another counts here.
FP16_PACE, FP8_PACE, BYTES_PACE = 684e12, 1279e12, 4.24e12


def least_seconds(net: ExportedNet, stored_fp8: Container[str]) -> float:
    """Return seconds of a batch where each layer takes as long as its products or its bytes, whichever take longer."""
    fast, total = set(fp8_values.layers_in_fp8(net, stored_fp8)), 0.0
    for node, layer in layer_calls(net.module):
        pace, shapes = FP8_PACE if layer.name in fast else FP16_PACE, list(map(shape_of, inputs_of(node)))
        if isinstance(layer, UpsampledLayer):
            flops = shapes[0][0] * layer.flops_per_image(shapes)
        else:
            flops = layer.op.flops(shapes[0], shapes[0][1] if layer.bias is None else len(layer.bias))
        values = [*inputs_of(node), *maps_of(node)]
        moved = sum(math.prod(shape_of(value)) * (1 if value.name in stored_fp8 else 2) for value in values)
        total += max(flops / pace, moved / BYTES_PACE)
    return total


LAYERS = "fp8_choice"  # in the details of a build: `chosen_layers`
JUDGED_BATCHES = 3  # on which a layer's sensitivity is measured: each layer costs a call of the whole network on each
KeepFp16 = str | list[str]


class UnsupportedDeviceError(CompileError):
    """A GPU without fp8 products, or without what the kernels need; the text is one line."""


@dataclass(frozen=True)
class Fp8:
    """The options of a build in fp8."""

    calibration: Callable[[], Sequence[Batch]]  # batches for the scales and, behind them, for the choice of layers
    budget: Budget  # how far the answer may be from fp16's
    keep_fp16: KeepFp16 = "auto"  # names of layers, "none", or "auto": as many as the budget asks for


@dataclass(frozen=True)
class Sensitivity:
    """The findings of calibration: scales, and layers that stay in fp16."""

    for_scales: int  # how many of the batches, from the first, the scales come from
    chose: bool  # whether the others said which layers stay in fp16
    seen: dict[str, float]  # the largest magnitude of every value, by its node's name
    kept: list[str]  # the layers that stay in fp16
    taken: dict[str, float]  # of the budget, by a layer that alone is in fp8


def build(
    request: driver.Request, fp8: Fp8, known: Sensitivity | None = None
) -> tuple[driver.Built, Sensitivity | None]:
    """Return the fastest form in fp8 or fp16, and what chose it (`known` from another shape); or raise CompileError."""
    chosen_by: list[Sensitivity] = []

    def barred() -> None:
        if reason := barred_on(request.inputs.device, torch.float8_e4m3fn):
            raise UnsupportedDeviceError(reason)

    def fastest_of_both(rewritten: driver.Rewritten) -> driver.Built:
        asked = fp8
        if isinstance(fp8.keep_fp16, list):  # but for those within modules that stay in fp32
            within = layers_within(request.network, request.kept)
            asked = replace(fp8, keep_fp16=[name for name in fp8.keep_fp16 if name not in within])
        named_layers(rewritten.net, asked.keep_fp16)
        makers, kept = driver.without_fp8(rewritten), "nothing"
        stored: list[dict[str, float]] = [{}]
        if found := sensitivity_or_why(rewritten, asked, known):
            chosen_by.append(found)
            makers |= {"fp8, own norms": partial(of_sensitivity, rewritten, found, own_norms=True)}
            makers |= {"fp8": partial(of_sensitivity, rewritten, found)}
            kept = f"kept in fp16: {found.kept}"
            stored.append(fp8_values.scales(rewritten.net, found.kept, found.seen))
        return driver.fastest_or_known(rewritten, makers, kept, stored)

    built = driver.best_form(request, barred, fastest_of_both)
    built = built.with_kept(request.network, request.kept).owned_up("fp8")
    return built, chosen_by[0] if "stored_fp8" in built.details else None


def apart(batches: Sequence[Batch]) -> tuple[Sequence[Batch], Sequence[Batch]]:
    """Return the batches for the scales, and the last ones for the choice of layers; a single one serves both."""
    chosen = min(JUDGED_BATCHES, len(batches) // 2)
    return (batches[:-chosen], batches[-chosen:]) if chosen else (batches, batches)


def sensitivity(rewritten: driver.Rewritten, fp8: Fp8, batches: Sequence[Batch]) -> Sensitivity:
    """Measure on calibration batches, or return what an earlier build with the same weights and options found."""
    net, tuner = rewritten.net, rewritten.request.tuner
    for_scales, for_choice = apart(batches)
    values = hashlib.sha256()
    for tensor in [*rewritten.plain.state_dict().values(), *(part for batch in batches for part in batch)]:
        values.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    others = [values.hexdigest(), str(len(for_scales)), str(fp8.keep_fp16), str(fp8.budget)]
    name = f"fp8 {driver.digest_of(rewritten, others)}"
    known = tuner.known(name)
    seen, kept, taken = (known.get(part) for part in ("seen", "kept", "taken"))
    if not (isinstance(seen, dict) and isinstance(kept, list) and isinstance(taken, dict)):
        rewritten.request.progress(f"scales and sensitivity on {len(batches)} batches")
        with torch.inference_mode(), untimed_library():
            seen = largest(net, for_scales)
            kept, taken = named_layers(net, fp8.keep_fp16), {}
            if fp8.keep_fp16 == "auto":
                kept, taken = keep_for(net, seen, for_choice, fp8.budget)
        tuner.keep(name, {"seen": seen, "kept": kept, "taken": taken})
    return Sensitivity(len(for_scales), fp8.keep_fp16 == "auto", seen, kept, taken)


def sensitivity_or_why(rewritten: driver.Rewritten, fp8: Fp8, earlier: Sensitivity | None = None) -> Sensitivity | None:
    """Return `sensitivity`; None where no layer can be in fp8, for the reason that `refused` then holds."""
    net, batches = rewritten.net, [] if earlier else fp8.calibration()
    try:
        if not fp8_values.quantisable(net):
            rewritten.refused["fp8"] = "none of its layers can read fp8"
            return None
        found = earlier or sensitivity(rewritten, fp8, batches)
        rewritten.findings[LAYERS] = layers_found = chosen_layers(net, found, fp8.budget)
    except Exception as error:  # noqa: BLE001 - whatever a network's operations make of their values
        traceback.print_exc()
        rewritten.refused["fp8"] = typed_line(error)
        return None
    if layers_found["in_fp8"]:
        return found
    if not fp8_values.scales(net, [], found.seen):
        rewritten.refused["fp8"] = "all that its layers could read in fp8 is infinite somewhere, or no number"
    elif found.chose:
        least = min(found.taken, key=found.taken.__getitem__, default="")
        figure = f"; {least}, which takes least, takes {found.taken[least]:.3g} × it" if least else ""
        rewritten.refused["fp8"] = f"no layer can be in fp8 within the {fp8.budget.in_words}{figure}"
    else:
        rewritten.refused["fp8"] = "keep_fp16 leaves no layer that could be in it"
    return None


def chosen_layers(net: ExportedNet, found: Sensitivity, budget: Budget) -> dict[str, Any]:
    """Return the layers in fp8, the others that can read it with their share of the budget if known, and the budget."""
    reading = fp8_values.layers_in_fp8(net, fp8_values.scales(net, found.kept, found.seen))
    others = [name for name in fp8_values.quantisable(net) if name not in reading]
    return {"in_fp8": reading, "refused": {name: found.taken.get(name) for name in others}, "limit": budget.in_words}


def of_sensitivity(rewritten: driver.Rewritten, chosen_by: Sensitivity, *, own_norms: bool = False) -> Candidate | None:
    """Return the network with as many values in fp8 as allowed; None if no layer reads fp8, or if it is refused."""
    net = rewritten.net

    def stored(slower: Collection[str]) -> dict[str, float]:
        return fp8_values.scales(net, [*chosen_by.kept, *slower], chosen_by.seen)

    made = rewritten.candidate(stored, "fp8", own_norms=own_norms)
    if made is None or not (reading := fp8_values.layers_in_fp8(net, made.plan.scales)):
        return None
    known = dict(layers(rewritten.request.network))
    products = [name for name, part in known.items() if isinstance(part, WHOLE)]
    others = [name if name in known else "" for name in fp8_values.left_to_inductor(net)]  # "": between layers
    names = dict.fromkeys([*products, *(layer.name for _, layer in layer_calls(net.module)), *others])
    in_fp16: dict[str, Precision] = {name: "fp16" for name in names if net.done_by(name) not in reading}
    made.properties = replace(made.properties, layer_precision=made.properties.layer_precision | in_fp16)
    made.name += f", {len(reading)} layers in fp8"
    made.details |= {"kept_fp16": chosen_by.kept, "sensitivity": chosen_by.taken}
    made.details |= {"stored_fp8": sorted(made.plan.scales), "largest": chosen_by.seen}
    found = {"in_fp8": reading, "faster_in_fp16": [*made.plan.slower]}
    rewritten.findings[LAYERS] = rewritten.findings.get(LAYERS, {}) | found
    return made


def named_layers(net: ExportedNet, asked: KeepFp16) -> list[str]:
    """Return the layers that do what an option names, none of "auto" and "none"; raise CompileError for others."""
    if asked in ("auto", "none"):
        return []
    known = dict.fromkeys(fp8_values.quantisable(net))
    doing = {name: {name, net.done_by(name)} for name in ([asked] if isinstance(asked, str) else asked)}
    if strange := sorted(name for name, by in doing.items() if by.isdisjoint(known)):
        raise CompileError(f"keep_fp16={strange[0]}: no such layer; choose among {', '.join(known)}")
    return [layer for layer in known if any(layer in by for by in doing.values())]
