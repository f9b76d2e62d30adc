"""What Hydra would import and call for a configuration, and what the command lines say of words they don't know."""

import re
from pathlib import Path

import pytest
import yaml
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException

from pipeline.cli.app import refused_before_it_began
from pipeline.cli.config_errors import one_line
from pipeline.cli.hydra_targets import check_targets
from pipeline.cli.preset import check_flags, config_folders
from pipeline.cli.sweep_size import check_sweep
from pipeline.command_line import Parser
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


CALLS = "hydra: {callbacks: [{x: {_target_: os.system}}]}"


@pytest.mark.parametrize(
    "text",
    [
        f"# @package _global_\n{CALLS}",
        CALLS.replace("_target_", '"_targ\\u0065t_"'),
        f"when: 2001-99-99\n{CALLS}",
        f"where: !!python/object/apply:pathlib.PosixPath [/tmp]\n{CALLS}",
        "base: &base {_target_: os.system}\nmine: {<<: *base}",
        "x: {_target_: '${oc.env:HOME}'}",
        "hydra: {searchpath: ['file:///tmp']}",
    ],
)
def test_what_a_file_of_the_user_s_has_hydra_call_is_checked(tmp_path: Path, text: str) -> None:
    """A stranger's stage may bring it along, however it is written, and behind a link; loops of links end."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (folder := tmp_path / "mine").mkdir()
    (folder / "stage").symlink_to(elsewhere)
    (elsewhere / "again").symlink_to(folder)
    check_targets([], [folder])
    (elsewhere / "theirs.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=r"theirs\.yaml: (_target_=.*: (os is P|it is no dotted)|hydra\.search)"):
        check_targets([], [folder])


def test_what_the_program_and_hydra_call_passes(tmp_path: Path) -> None:
    """And so do a copy of the program's own files, and files that Hydra can't read."""
    for text in ("_target_: hydra_plugins.x.Launcher", "target: os.system", "_target_: ["):
        (tmp_path / "theirs.yaml").write_text(text, encoding="utf-8")
        check_targets([], [tmp_path, CONF])


def test_every_flag_that_brings_files_is_looked_through() -> None:
    for words in (["--config-dir", "a", "-cp", "b"], ["-cd=a", "--config-path=b"], ["--config-di=a", "--config-pat=b"]):
        assert config_folders(["seed=1", *words]) == [Path("a"), Path("b")]


def test_a_pickle_is_not_run_again() -> None:
    with pytest.raises(RequestError, match=r"^--experimental-rerun: it runs what a pickle holds"):
        check_flags(["--experimental-rerun=x.pickle"])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.b\u0430tch_size=2", "CYRILLIC SMALL LETTER A; did you mean 'data.batch_size'?"),
        ("data.\u200bsize=64", "ZERO WIDTH SPACE; did you mean 'data.size'?"),
        ("stage=[x", "an override is written key=value"),
        ("subject_to=[memory<8GiB,p99<20ms]", """write 'subject_to=["memory<8GiB","p99<20ms"]'"""),
        ("subject_to=memory<8GiB", """write 'subject_to=["memory<8GiB"]'"""),
        ("data.path=a&b", """'&' is read within quotes alone; write 'data.path="a&b"'"""),
        ("stage=half,", "stage=half,: a comma with no value before or after it; a sweep is -m stage=ONE,OTHER"),
        ("data.batch_size=1,,2", "a comma with no value before or after it"),
    ],
)
def test_a_letter_that_looks_like_another_is_named(word: str, said: str) -> None:
    assert said in one_line(OverrideParseException(word, "token recognition error"), CONF)


def test_a_letter_that_looks_like_another_is_named_in_a_file_s_name() -> None:
    """As in a key: it looks like the name that is proposed."""
    said = one_line(HydraException("Could not find 'preset/sm\u03bfke'"), CONF)
    assert said.endswith("no such file in conf/preset, as it has a GREEK SMALL LETTER OMICRON; did you mean 'smoke'?")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.batch_size=range(2,0)"], "data.batch_size=range(2,0): a range without a value"),
        (["seed=range(1,2,0)"], "a range without an end"),
        (["seed=range(0,inf)"], "a range without an end"),
        (["seed=shuffle(range(1,1000))", "data.batch_size=1,2"], "a sweep of 1,998 jobs; at most 1,000"),
    ],
)
def test_a_sweep_of_no_job_or_of_too_many_is_refused(words: list[str], said: str) -> None:
    """Before Hydra lists them all, which of a million times a million takes all memory."""
    with pytest.raises(RequestError, match=re.escape(said)):
        check_sweep(words)


def test_a_sweep_of_some_jobs_passes() -> None:
    """And one of a sweeper that searches: it draws from the range."""
    check_sweep(["stage=half,compile", "data.batch_size=range(1,9)", "seed=range(0,1,0.1)", "preset=smoke"])
    check_sweep(["hydra/sweeper=optuna", "seed=range(0,1000000)"])


def test_a_key_that_is_added_though_it_is_there_is_told_without_the_plus() -> None:
    said = one_line(ConfigCompositionException("Could not append to config. An item is already at 'a.b'."), CONF)
    assert said == "+a.b: there is such a key already; write it without the plus: a.b=..."


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
