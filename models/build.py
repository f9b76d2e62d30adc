"""Makes the net that the user named, in fp32, ready to answer."""

import inspect
from collections.abc import Mapping

import torch
from torch import nn

from models.checkpoint import load_into, without_plain_values
from models.model_output import with_output
from models.named_code import maker_of_net, with_classes
from pipeline.errors import ModelError


def build_model(
    target: str, options: Mapping[str, object], checkpoint: str | None, seed: int, output: int | str | None = None
) -> nn.Module:
    """The net `target(**options)` in eval mode with the checkpoint's weights, or with seeded random ones.

    Args:
        target: a dotted name such as "my_package.MyNet", of a class or of a function that makes a net.
        options: its keyword arguments; {_class_: "torch.nn.InstanceNorm2d"} stands for that class.
        checkpoint: a file of weights.
        seed: of random weights.
        output: which part of the net's answer holds the logits; None where the answer is they.

    Raises:
        ModelError: `target` names nothing that makes a net, it doesn't take these options, or takes more memory than
            there is.
        CheckpointError: the file isn't weights of this net.
    """
    maker = maker_of_net(target)
    given = with_classes(options, "model.options")
    torch.manual_seed(seed)
    try:
        model = maker(**given)
    except SystemExit as error:
        raise ModelError(f"model.target: {target} {ends_the_program(error)} when it is made") from error
    except (TypeError, ValueError) as error:
        known = ", ".join(inspect.signature(maker).parameters)
        raise ModelError(f"model.options don't fit {target}: {error}; it takes {known}") from None
    except (RuntimeError, ArithmeticError, LookupError) as error:  # torch's, of a size that is none, or the net's own
        if "out of memory" in str(error) or "allocate memory" in str(error) or not options:
            raise
        said = ", ".join(f"{key}={part}" for key, part in options.items())
        why = (str(error).splitlines() or [""])[0]
        raise ModelError(f"model.options ({said}): {target} fails with them: {type(error).__name__}: {why}") from None
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.target={target}: it returns a {type(model).__name__}, no torch.nn.Module")
    check_plain(target, model)
    check_layouts(target, model)
    if checkpoint:
        load_into(model, checkpoint)
    return with_output(answering(model), output)


def answering(model: nn.Module) -> nn.Module:
    """The net itself, in eval mode and fp32; its own `eval` or `float` may forget to return it."""
    without_history(model)
    model.eval()
    model.float()
    return model


def without_history(model: nn.Module) -> None:
    """Take their gradient's history from tensors that modules hold beside their parameters.

    None with one can be copied. torch's older weight norm leaves one where it is put on a layer, and computes it anew
    at each call.
    """
    for part in model.modules():
        for name, held in vars(part).items():
            if isinstance(held, torch.Tensor) and not held.is_leaf:
                setattr(part, name, held.detach())


def check_plain(target: str, model: nn.Module) -> None:
    """That the net is Python's, which each stage compiles or scripts itself.

    Raises:
        ModelError: it isn't; the line says what to give in its place.
    """
    compiled = "_orig_mod" in model._modules  # of torch.compile, whose module is slow to import
    if compiled or isinstance(model, torch.jit.ScriptModule):
        by = "torch.compile" if compiled else "torch.jit.script or torch.jit.load"
        raise ModelError(f"model.target: {target} gives what {by} made; give the net itself: stages do that")


def check_layouts(target: str, model: nn.Module) -> None:
    """That every parameter and buffer is a plain tensor.

    One without values can't be moved, and where a quantised one is made fp32, the process dies by SIGSEGV (torch 2.12).

    Raises:
        ModelError: one isn't; the line names the first.
    """
    for name, part in (*model.named_parameters(), *model.named_buffers()):
        if why := without_plain_values(part):
            raise ModelError(
                f"model.target: {target} makes {name} with {why}; make a net whose weights are plain tensors"
            )


def ends_the_program(error: SystemExit) -> str:
    """What a net does that leaves Python in place of answering, in a clause."""
    return f"ends the program (sys.exit({error.code!r}))"
