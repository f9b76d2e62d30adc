"""Which preset is taken where the user names none."""

from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from pipeline.devices.kinds import is_cuda


def preset_for(arguments: list[str], devices: list[str]) -> list[str]:
    """The override `preset=cpu` where the run goes to the CPU and the user names no preset; else none.

    A sweep has one preset for all of its jobs, so that they can be compared: the CPU's where no job goes to a GPU.

    Args:
        arguments: what the user typed after the program's name.
        devices: the GPUs that CUDA may use.
    """
    overrides = overrides_in(arguments)
    if any(override.key_or_group == "preset" for override in overrides):
        return []
    named = [set(values(override)) for override in overrides if override.key_or_group == "device"]
    asked = named[-1] if named else {"auto"}
    on_cpu = asked == {"cpu"} if devices else not all(map(is_cuda, asked))  # without a GPU, device=cuda is refused
    return ["preset=cpu"] if on_cpu else []


def overrides_in(arguments: Iterable[str]) -> list[Override]:
    """What among the arguments is an override; Hydra itself refuses what is neither that nor a flag of its own."""
    parser, found = OverridesParser.create(), []
    for argument in arguments:
        try:
            found += [] if argument.startswith("-") else [parser.parse_override(argument)]
        except HydraException:
            continue
    return found


def values(override: Override) -> list[str]:
    """The value of an override, or each of those that a sweep goes through, without quotes."""
    value = override.value()
    parts = value.list if isinstance(value, ChoiceSweep) else [value]
    return [str(getattr(part, "text", part)) for part in parts]
