"""From a stage's target, a name in its YAML, to the function that builds it."""

from collections.abc import Callable

from pipeline.inputs.targets import import_target, refusal
from pipeline.records.request import StageSpec
from pipeline.stages.api import Runner, StageError


def build_function(spec: StageSpec) -> Callable[..., Runner]:
    """The `build` of a stage's module.

    Raises:
        StageError: there is no such module, or it has no `build`.
    """
    if why := refusal(spec.target):
        raise StageError(f"stage {spec.name}: {spec.target} is not imported: {why}")
    try:
        build: Callable[..., Runner] = import_target(spec.target).build
    except (ImportError, AttributeError) as error:
        raise StageError(f"stage {spec.name}: {spec.target} has no build function ({error})") from error
    return build
