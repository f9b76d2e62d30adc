"""What Hydra would import and call for a configuration, and what the command lines say of words they don't know."""

from pathlib import Path

import pytest
import yaml
from hydra.errors import OverrideParseException

from models.one_line import Parser
from pipeline.cli.app import refused_before_it_began
from pipeline.cli.config_errors import one_line
from pipeline.cli.hydra_targets import check_targets
from pipeline.cli.preset import config_folders
from pipeline.config.request_error import RequestError
from tests.cli.conftest import ROOT

CONF = ROOT / "conf"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+hydra.callbacks.x._target_=os.makedirs", "os is Python's own library"),
        ("+hydra.callbacks.x={_target_: shutil.rmtree, path: /tmp}", "shutil is Python's own library"),
        ("hydra.launcher._target_=subprocess.run", "subprocess is Python's own library"),
        ("++hydra.callbacks.x._target_=torch.load", "torch"),
        ("hydra.searchpath=[file:///tmp]", "hydra.searchpath: name a folder of yours by --config-dir"),
    ],
)
def test_what_hydra_would_call_is_checked_as_a_stage_is(word: str, said: str) -> None:
    """Before it imports it; folders that a knob adds aren't looked through, so there are none."""
    with pytest.raises(RequestError) as refused:
        check_targets([word], [])
    assert said in str(refused.value)


def test_targets_in_a_folder_of_the_user_s_are_checked_too(tmp_path: Path) -> None:
    """A stranger's stage may bring them along; plugins of Hydra's, and files that are no YAML, pass here."""
    (tmp_path / "stage").mkdir()
    file = tmp_path / "stage" / "theirs.yaml"
    for text in ("_target_: hydra_plugins.x.Launcher", "target: os.system", "_target_: [", "_target_: !!python/x y"):
        file.write_text(text, encoding="utf-8")
        check_targets([], [tmp_path])
    file.write_text("# @package _global_\nhydra: {callbacks: [{x: {_target_: os.system}}]}", encoding="utf-8")
    with pytest.raises(RequestError, match=r"theirs\.yaml: _target_=os\.system: os is Python's own library"):
        check_targets([], [tmp_path])


def test_every_flag_that_brings_files_is_looked_through() -> None:
    words = ["--config-dir", "a", "-cp", "b", "--config-path=c", "seed=1"]
    assert config_folders(words) == [Path("a"), Path("b"), Path("c")]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.b\u0430tch_size=2", "CYRILLIC SMALL LETTER A; did you mean 'data.batch_size'?"),
        ("data.\u200bsize=64", "ZERO WIDTH SPACE; did you mean 'data.size'?"),
        ("stage=[x", "an override is written key=value"),
    ],
)
def test_a_letter_that_looks_like_another_is_named(word: str, said: str) -> None:
    assert said in one_line(OverrideParseException(word, "token recognition error"), CONF)


def test_a_value_with_a_line_break_loses_no_reason() -> None:
    """One line, that of the value and of what is wrong with it."""
    assert one_line(RequestError("resume=a\nb: no such folder"), CONF) == "resume=a b: no such folder"


def test_a_file_that_is_no_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\nb: [", encoding="utf-8")
    with pytest.raises(yaml.YAMLError) as raised, file.open(encoding="utf-8") as text, refused_before_it_began():
        yaml.safe_load(text)
    assert one_line(raised.value, CONF).startswith(f"{file}, line 2: no YAML that can be read: ")


@pytest.mark.parametrize(
    ("text", "cause", "said"),
    [
        ("Error merging override report=[1,2]", "a list", "report=[1,2]: not what this key takes: a list"),
        ("Cannot find primary config 'confg'. Check", "", "confg: no such file of a whole configuration; --config-dir"),
    ],
)
def test_what_hydra_says_of_a_request_becomes_its_words(text: str, cause: str, said: str) -> None:
    error = ValueError(text)
    error.__cause__ = ValueError(cause) if cause else None
    assert one_line(error, CONF).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hlep"], "error: --hlep: no such flag; did you mean --help?"),
        (["run", "--batch=x"], "error: --batch: invalid int value: 'x'; python -m x --help says what there is"),
        ([], "error: the following arguments are required: run; python -m x --help says what there is"),
        (["run", "--", "--hlep"], "error: unrecognized arguments: --hlep; python -m x --help says what there is"),
    ],
)
def test_a_command_line_that_is_wrong_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag that isn't there is told before an argument that is missing."""
    parser = Parser(prog="python -m x")
    parser.add_argument("run")
    parser.add_argument("--batch", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert (ended.value.code, capsys.readouterr().err.startswith(said)) == (2, True)
