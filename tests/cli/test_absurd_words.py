"""Words that no run can be meant by are refused in one line, before a folder of somebody's is touched."""

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.app import Invocation, refused_before_it_began
from pipeline.cli.config_errors import one_line
from pipeline.cli.preset import check_flags, check_groups, overrides_in
from pipeline.cli.progress import print_error
from pipeline.cli.run_folder import claim
from pipeline.config.request_error import RequestError
from tests.cli.conftest import ROOT, Ask

CONF = ROOT / "conf"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data={size: 8}", "data={size:8}: a run needs one of conf/data: folder, samples, stain"),
        ("stage=[eager,compile]", "stage=[eager,compile]: a run needs one of conf/stage: amp,"),
        ("measure=3", "measure=3: a run needs one of conf/measure: quick,"),
        ("model={}", "model={}: a run needs one of conf/model: bottleneck_compute,"),
        ("~stage", "stage=null: a run needs one of conf/stage: amp,"),
        ("=1", "=1: no such key; an override is written key=value"),
        ("@x=1", "@x=1: no such key"),
        ("x" * 5000 + "=1", "no such key"),
        ("seed=" + "1" * 20_000, "at most 10,000 are read"),
        ("seed=" + "9" * 5000, "a number or a nesting beyond what is read"),
    ],
)
def test_a_word_that_names_no_file_is_refused(word: str, said: str) -> None:
    """Hydra would take two files of a folder as one, and drop pairs in a file's place."""
    with pytest.raises(RequestError) as refused:
        check_groups([word], CONF)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 400


def test_words_that_name_a_file_or_a_sweep_of_them_are_taken() -> None:
    words = ["stage=eager", "stage='eager'", "stage=eager,compile", "data.size=8", "--help"]
    check_groups(words, CONF)
    assert len(overrides_in(words)) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stage=eager", "--cgf", "job"], "--cgf: no such flag; did you mean '--cfg'?"),
        (["--multi-run=1"], "--multi-run=1: no such flag; did you mean '--multirun'?"),
        (["--cfg", "weird"], "--cfg/-c: invalid choice: 'weird'"),
        (["--cfg"], "--cfg/-c: expected one argument; python -m pipeline --help"),
    ],
)
def test_a_flag_that_hydra_does_not_know_is_one_line(words: list[str], said: str) -> None:
    """Its own answer is a page of usage."""
    with pytest.raises(RequestError) as refused:
        check_flags(words)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_flags_that_hydra_knows_are_taken() -> None:
    check_flags(["stage=eager", "-m", "--cfg", "job"])


def test_a_sweep_without_its_flag_is_told_so() -> None:
    """Hydra's own line doesn't say what to type."""
    said = one_line(ValueError("Ambiguous value for argument 'stage=eager,compile'\n1. To use it as ..."), CONF)
    assert said == "stage=eager,compile: several values are a sweep; put -m before it"


@pytest.mark.parametrize("value", ["${nothing}", "${data.size}", "${oc.env:NO_SUCH_VARIABLE_HERE}"])
def test_an_interpolation_that_leads_nowhere_names_its_key(value: str) -> None:
    """OmegaConf's own line says what is wrong, and not where."""
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.to_container(OmegaConf.create({"data": {"size": value}}), resolve=True)
    assert one_line(caught.value, CONF).startswith("data.size: ")


@pytest.mark.parametrize("name", ["config.yaml", "results.json", "report.md", "reference", "baseline"])
def test_a_folder_with_what_a_run_would_write_over_is_left_alone(name: str, tmp_path: Path) -> None:
    """A refused run takes back what it wrote, and would take these with it; another run's folder is no such case."""
    (tmp_path / "notes.txt").touch()
    assert claim(tmp_path) == tmp_path
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / name).mkdir() if "." not in name else (theirs / name).write_text("mine")
    with pytest.raises(RequestError, match=f"a run would write over the {name} that is in it"):
        claim(theirs)
    assert [part.name for part in theirs.iterdir()] == [name]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileExistsError(17, "File exists", "/a/file"), "/a/file: File exists"),
        (OSError(36, "File name too long", "a" * 5000), "(5000 characters): File name too long"),
        (OSError(27, "File too large"), "a file of the run, started in "),
        (ValueError("embedded null byte"), "embedded null byte"),
        (RecursionError("maximum recursion depth exceeded"), "maximum recursion depth exceeded"),
    ],
)
def test_what_fails_before_a_run_has_its_folder_is_the_request_s(error: Exception, said: str) -> None:
    """Whatever fails later is none: its traceback is kept."""
    with pytest.raises(RequestError) as refused, refused_before_it_began():
        raise error
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_folder_that_is_gone_is_named_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own words name no file."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RequestError, match="the folder that this was started in is gone"), refused_before_it_began():
        Path.cwd()


def test_a_launcher_that_is_not_installed_is_told_so() -> None:
    """No folder of ours holds it."""
    said = one_line(ValueError("Could not find 'hydra/launcher/joblib'"), CONF)
    assert said == "hydra/launcher=joblib: Hydra finds none of that name; a plugin that brings one must be installed"


def begin_and_fail() -> None:
    Invocation.begun += 1
    raise ValueError("of the program")


def test_what_fails_later_or_at_a_closed_pipe_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's fault, or the program's."""
    with pytest.raises(BrokenPipeError), refused_before_it_began():
        raise BrokenPipeError
    monkeypatch.setattr(Invocation, "begun", Invocation.begun)
    with pytest.raises(ValueError, match="of the program"), refused_before_it_began():
        begin_and_fail()


def test_a_value_of_the_environment_is_not_shown_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the word as it was typed."""
    monkeypatch.setenv("MY_PLACE", "/home/somebody")
    monkeypatch.setattr(sys, "argv", ["pipeline", "data.size=${oc.env:MY_PLACE}"])
    print_error("data.size=/home/somebody: expected an integer")
    assert capsys.readouterr().err == "error: data.size=${oc.env:MY_PLACE}: expected an integer\n"


def test_a_folder_that_is_anothers_is_refused_in_one_line(tmp_path: Path, ask: Ask) -> None:
    """Before the run has claimed it, too: Hydra's line came first."""
    (tmp_path / "reference").mkdir()
    done = ask("preset=smoke", "stage=eager", f"hydra.run.dir={tmp_path}")
    said = f"error: {tmp_path}: a run would write over the reference that is in it; name another folder\n"
    assert (done.returncode, done.stderr) == (2, said)
