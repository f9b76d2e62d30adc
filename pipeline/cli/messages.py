"""One line for an error of Hydra, OmegaConf or YAML: its first line, with the nearest valid name."""

import re
import shlex
import sys
from difflib import get_close_matches
from pathlib import Path

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from conf import FOLDER
from pipeline.command_line import told
from pipeline.config.request_error import RequestError
from pipeline.errors import InputError, first_line, nearest, shortened
from pipeline.records.request import flattened

CONF = FOLDER
USERS_CONF = Path("conf")  # in the current folder
MOST_OF_OWN = 1000  # characters of this program's own message, whose end says what to do
FILE = re.compile(r"Could not find '([\w/]+)/([^'/]*)'")
KEY = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'(?: does not exist)?")
REMEDIES = {  # of Hydra's messages
    "Ambiguous value for argument": "; -m runs a job for each value, and brackets make one list: [1,2]",
    **dict.fromkeys(("Multiple values for", "force-add of config groups"), "; leave + out to choose another"),
}
FEW = 3  # files that a message names
OPTIONS, STAGE = "model.options.", "stage."
ONE_OF_SEVERAL = "model.options.net"  # of presets of libraries
ANY_CLASS = "model=custom model.target=PACKAGE.CLASS, such as diffusers.UNet2DConditionModel"


def one_line(error: BaseException) -> str:
    """Return the line that tells the user what is wrong with the request."""
    if isinstance(error, RequestError | InputError):
        return shortened(" ".join(str(error).splitlines()), MOST_OF_OWN)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return told(error)
    if isinstance(error, UnicodeDecodeError):
        around = error.object[max(0, error.start - 20) : error.end + 20].decode(errors="replace")
        return f"a YAML file is no UTF-8 text, near {' '.join(around.split())!r}; save it as UTF-8"
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.YAMLError) and mark:
        return f"{mark.name}, line {mark.line + 1}: {getattr(error, 'problem', None) or first_line(error)}"
    key = getattr(error, "full_key", None) if isinstance(error, OmegaConfBaseException) else None
    cause = f": {first_line(error.__cause__)}" if "merging override" in str(error) and error.__cause__ else ""
    said = first_line(error).partition("In 'config': ")[2] or first_line(error)
    said = KEY.sub(r"\1: no such key", FILE.sub(r"\1=\2: no such choice", said))
    return f"{f'{key}: ' if key else ''}{said.rstrip('.')}{cause}{_hint(str(error))}"


def _hint(text: str) -> str:
    """Return a clause with the nearest file of conf/ or key, or with the flag of a sweep."""
    if remedy := next((remedy for said, remedy in REMEDIES.items() if said in text), ""):
        return remedy
    if file := FILE.search(text):
        group, name = file.groups()
        names = sorted({path.stem for folder in (CONF, USERS_CONF) for path in (folder / group).glob("*.yaml")})
        return f"; {nearest(name, names)}" if names else ""
    if not (found := KEY.search(text)):
        return ""
    key, keys = found[1], known_keys()
    one_stage = any(word.startswith("stage=") and word != "stage=ladder" for word in sys.argv)
    if key.startswith(STAGE) and key in keys and not one_stage:
        return f"; in a list of stages it is stage.rungs.NAME.{key.removeprefix(STAGE)}"
    if key == ONE_OF_SEVERAL:
        return f"; this model has one network; others by {ANY_CLASS}"
    if key.startswith(OPTIONS):  # those of another model are refused; without a word that names one, of any
        chosen = {word for word in sys.argv if word.startswith("model=")}
        keys = {name: of for name, of in keys.items() if name.startswith(OPTIONS) and chosen <= {*of}}
    close = [name for name in get_close_matches(key.lower(), keys, n=1) if name != key]  # of another preset
    typed = next((word for word in sys.argv if word.startswith(f"{key}=")), f"{key}=VALUE")
    adds = f"{shlex.quote(f'+{typed}')} adds it" if key.startswith(OPTIONS) else ""
    goes = f"it goes with {' or '.join(keys[key][:FEW])}" if key in keys else ""
    rest = "; ".join(filter(None, (adds, goes)))
    return f"; did you mean {close[0]!r}? {rest}".rstrip() if close else rest and f"; {rest}"


def known_keys() -> dict[str, list[str]]:
    """Return every key that a user can type, from the files of conf/, with the files that alone have it."""
    keys: dict[str, list[str]] = {}
    for path in [CONF / "config.yaml", *sorted(CONF.glob("*/*.yaml"))]:
        group = path.parent.name
        before = "" if group in (CONF.name, "preset") else f"{group}."
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        own = {key: value for key, value in values.items() if key not in ("defaults", "hydra")}
        for key in (group, *(f"{before}{key}" for key, _ in flattened(own))):
            keys.setdefault(key, []).append(f"{group}={path.stem}")
    return {key: keys[key] for key in sorted(keys) if key != CONF.name}
