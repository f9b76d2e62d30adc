"""The net that the words of a command line name, by the files of conf/; free of torch."""

import difflib
import re

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from conf import FOLDER as CONF
from pipeline.errors import ModelError


def typed_net(overrides: list[str]) -> DictConfig:
    """What overrides such as ["model=unet", "model.options.base=16"] say of the net: its target and its options.

    Raises:
        ModelError: there is no such net, or its file has no such option; one line.
    """
    try:
        with initialize_config_dir(str(CONF), version_base=None):
            config = compose("config", overrides)
    except (HydraException, OmegaConfBaseException) as error:
        known = ", ".join(sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
        where = nearest_option(overrides, str(error)) or f"model is one of {known}"
        raise ModelError(f"{' '.join(overrides)}: {str(error).splitlines()[0].rstrip('.')}; {where}") from None
    if not config.model.target:
        raise ModelError("model.target names no class; give one, such as my_package.MyNet")
    found: DictConfig = config.model
    return found


def nearest_option(overrides: list[str], said: str) -> str:
    """A clause with the option that is most like the one that Hydra doesn't find; empty where it speaks of another."""
    missing = re.search(r"Could not override 'model\.options\.([^']+)'", said)
    if not missing:
        return ""
    net = [word for word in overrides if word.startswith("model=")]
    with initialize_config_dir(str(CONF), version_base=None):
        known = list(compose("config", net).model.options)
    near = difflib.get_close_matches(missing[1], known, n=1, cutoff=0.5)
    if near:
        return f"did you mean model.options.{near[0]}?"
    added = f"write +model.options.{missing[1]}=… for an option that its file doesn't have"
    return f"its options are {', '.join(known)}; {added}" if known else added
