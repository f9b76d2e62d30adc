"""The command line is parsed once: presets, lists of stages, quotes, sweeps, flags, and the words of a resumed run."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from pipeline.cli import app
from pipeline.cli.arguments import parse
from pipeline.cli.messages import CONF
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from tests.cli.conftest import Ask
from tests.fake_machine import run_record, stage_record, steady_pair

GPU = ["NVIDIA H200"]
MEASURED = run_record([stage_record("eager", steady_pair(1.0))])


@pytest.mark.parametrize(
    ("typed", "gpus", "added"),
    [
        ("", GPU, []), ("", [], ["preset=cpu"]), ("device=cpu", GPU, ["preset=cpu"]),
        ("++device='cpu'", GPU, ["preset=cpu"]), ("device=cuda", [], []), ("++preset=smoke device=cpu", GPU, []),
        ("-m preset=smoke,cpu", [], []), ("-m stage=eager,half", [], ["preset=cpu"]), ("-m device=cpu,cuda", GPU, []),
        ("-m device=cpu,cuda", [], ["preset=cpu"]), ("+data.note='device=cpu'", GPU, []),
    ],
)  # fmt: skip
def test_a_run_on_the_cpu_has_its_preset(typed: str, gpus: list[str], added: list[str]) -> None:
    assert parse(typed.split(), gpus).typed == [*typed.split(), *added]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("stage=half -m data.size=1,2", "stage=half data.size=1,2 -m"),
        ("stage=half --cfg job threads=1", "stage=half threads=1 --cfg job"),
        ("--info defaults stage=half", "stage=half --info defaults"),
        ("--config-dir mine stage=half --help", "stage=half --config-dir mine --help"),
        ("--hydra-help", "--hydra-help"),
        ("-sc install=bash", "install=bash -sc"),
        ("-m --cfg job ~data.note +data.note=1 seed=0 seed=0", "~data.note +data.note=1 seed=0 seed=0 -m --cfg job"),
    ],
)
def test_flags_may_stand_anywhere(typed: str, words: str) -> None:
    assert parse(typed.split(), GPU).words == words.split()


def test_a_list_of_stages_is_a_ladder_of_them() -> None:
    """Each once, in the ladder's order, then those that it does not have; the record keeps the list."""
    line = parse(["data.batch_size=2", "stage=[half,openvino,'eager',half]"], GPU)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", line.words)
    assert [rung.name for rung in config.stage.rungs.values()] == ["eager", "half", "openvino"]
    assert line.typed[1] == "stage=[half,openvino,'eager',half]"


def test_a_path_is_read_whatever_its_letters(tmp_path: Path) -> None:
    """Hydra reads some letters and signs in quotes only; what it reads without quotes stays."""
    (there := tmp_path / "it's (1){").mkdir()
    typed = ["data.path=/home/jörg", f"data.labels={there}", "subject_to=memory<8GiB", f"resume_despite={tmp_path}"]
    line = parse(typed, GPU)
    found = [line.values(word.partition("=")[0]) for word in typed]
    assert found == [["/home/jörg"], [str(there)], ["memory<8GiB"], [str(tmp_path)]]
    assert line.words[0] == "data.path='/home/jörg'"
    assert line.words[3] == typed[3]


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("data.path=tiles, 2024", "tiles, 2024"), ("hydra.run.dir=out/lr=1e-3", "out/lr=1e-3"),
        ("model.checkpoint=a=1,b=2/epoch=9.ckpt", "a=1,b=2/epoch=9.ckpt"), ("data.labels=(masks) [1]", "(masks) [1]"),
        ("data.path='a,b'", "a,b"), ("data.label_map=im *:gt (*), a.png", "im *:gt (*), a.png"),
        ("data.path=null", None), ("data.path=2026", "2026"), ("data.path=~/a b", f"{Path.home()}/a b"),
    ],
)  # fmt: skip
def test_commas_and_equals_signs_are_letters_of_a_path(word: str, path: str | None) -> None:
    override = parse([word], GPU).overrides[0]
    assert not override.is_sweep_override()
    assert getattr(override.value(), "text", override.value()) == path


def test_commas_of_a_path_are_a_sweep_where_one_is_asked_for(tmp_path: Path) -> None:
    (there := tmp_path / "a, b").mkdir()
    for path, jobs in (("x,y", ["x", "y"]), (str(there), [str(there)])):
        assert parse(["-m", f"data.path={path}"], GPU).values("data.path") == jobs


@pytest.mark.parametrize(
    ("typed", "added"),
    [
        ("data=folder", ["data.size=null"]),
        ("data=folder +data.size=256", []),
        ("data=folder preset=smoke", []),
        ("data=tensors preset=smoke", ["data.size=null"]),
        ("data=samples", []),
        ("-m data=folder,volume", ["data.size=null"]),
        ("measure.sampling_seconds=4", ["measure.gpu.sampling_seconds=${measure.sampling_seconds}"]),
        ("measure.sampling_seconds=4 measure.gpu.sampling_seconds=30", []),
        ("measure=quick", []),
    ],
)
def test_what_a_preset_does_not_mean_is_shown_as_it_runs(typed: str, added: list[str]) -> None:
    """So `--cfg job` and the kept config.yaml have it; the record has the words as they were typed."""
    line, words = parse(typed.split(), []), typed.split()
    preset = [] if "preset=smoke" in words else ["preset=cpu"]
    assert line.typed == [*words, *preset]
    assert [word for word in line.words if word not in (*words, *preset)] == added


def test_a_sweep_of_data_with_and_without_a_size_of_their_own_is_refused() -> None:
    with pytest.raises(RequestError, match="data=samples,folder: not all of them take the preset's size"):
        parse(["-m", "data=samples,folder"], [])
    some = parse(["-m", "stage=half,compile", "data.batch_size=range(1,9)", "seed=range(0,1,0.1)"], GPU)
    assert "seed=range(0,1,0.1)" in some.words
    assert "stage=glob(comp*)" in parse(["-m", "stage=glob(comp*)"], GPU).words
    assert "seed=range(0,1000000)" in parse(["-m", "hydra/sweeper=optuna", "seed=range(0,1000000)"], GPU).words


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--preset", "smoke"], "--preset: no such flag; write preset=smoke"),
        (["--prest=smoke"], "--prest: no such flag; write preset=smoke"),
        (["--batch-size", "8"], "--batch-size: no such flag; write data.batch_size=8"),
        (["stage=eager", "--cgf", "job"], "--cgf: no such flag; did you mean '--cfg'?"),
        (["--cfg", "weird"], "--cfg/-c: invalid choice: 'weird'"),
        (["--cfg"], "--cfg/-c: expected one argument; see python -m pipeline --help"),
        (["stage=eager", "stage=half"], "stage: given twice, 'eager' and 'half'; leave one out"),
        (["hydra/launcher=a", "hydra/launcher=b"], "hydra.launcher: given twice, 'a' and 'b'; leave one out"),
        (["-m", "seed=1,2", "++seed=4"], "seed: given twice, '1,2' and '4'; leave one out"),
        (["nonsense"], "nonsense: cannot be read; write KEY=VALUE"),
        (["=1"], "=1: cannot be read; write KEY=VALUE"),
        (["stage=[x"], "stage=[x: cannot be read"),
        (["data.size==32"], "data.size==32: cannot be read"),
        (["data.path='images"], "data.path='images: cannot be read"),
        (["seed=" + "9" * 5000], "Exceeds the limit"),
        (["stage=null"], "stage=null: name one file of conf/stage: amp,"),
        (["~stage"], "~stage: name one file of conf/stage: amp,"),
        (["data={size: 8}"], "data={size: 8}: name one file of conf/data: folder,"),
        (["measure=3"], "measure=3: name one file of conf/measure: quick,"),
        (["model=[unet,unet_small]"], "model=[unet,unet_small]: name one file of conf/model:"),
        (["stage=[1]"], "stage=[1]: name one file of conf/stage:"),
        (["-m", "data.size=glob(*)"], "data.size=glob(*): glob is for the files of a folder of conf/"),
        (["-m", "seed=interval(0,1)"], "seed=interval(0,1): a grid has no interval; range(0,1,0.25) steps through one"),
        (["-m", "hydra.sweep.subdir=a"], "hydra.sweep.subdir=a: the jobs of a sweep are folders by number"),
        (["-m", "seed=range(2,0)"], "seed=range(2,0): no value; range(1,4) is 1, 2 and 3"),
        (["-m", "seed=range(0,inf)"], "a sweep has at most 1,000 jobs"),
        (["-m", "seed=range(0,999)", "data.batch_size=1,2"], "a sweep has at most 1,000 jobs"),
    ],
)
def test_words_that_cannot_be_meant_are_one_line(typed: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        parse(typed, GPU)
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


def test_a_key_is_read_by_its_earlier_name() -> None:
    words = ["+measure.gpu_head_to_head=0", "measure.build_limit_seconds=9", "measure.warmup_limit_seconds=1"]
    line = parse(words, GPU)
    assert line.words == ["+measure.gpu.head_to_head=0", "measure.limits.build=9", "measure.warmup_limit_seconds=1"]
    assert line.renamed == [
        "measure.gpu_head_to_head is called measure.gpu.head_to_head now",
        "measure.build_limit_seconds is called measure.limits.build now",
    ]


def resumed(*typed: str) -> list[str]:
    return parse(typed, GPU).typed[len(typed) :]


def test_resume_alone_asks_what_the_run_was_asked(tmp_path: Path) -> None:
    """Except where it is kept; whoever types more asks for all. A sweep's words are those of its jobs."""
    typed = "preset=smoke 'stage=[half,amp]' hydra.run.dir=x resume=old gpu_busy=share"
    codec.save(replace(MEASURED, command=f"python -m pipeline {typed}"), tmp_path / "run")
    codec.save(replace(MEASURED, command=f"python -m pipeline -m {typed}"), tmp_path / "sweep" / "0")
    words = ["preset=smoke", "stage=[half,amp]"]
    assert resumed(f"resume={tmp_path}/run") == words
    assert resumed(f"resume={tmp_path}/sweep", "resume_despite=[code]") == ["-m", *words]
    for more in (f"resume={tmp_path}/run", "seed=1"), ("seed=1",), ("resume=null",), ("resume='${oc.env:RUN}'",):
        assert resumed(*more) == []
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / codec.CLAIM).touch()
    lost, job = "no such file; name the folder", f"a job of a sweep; resume={tmp_path}/sweep goes on"
    for name, why in (("none", lost), ("killed", "this run has no record yet"), ("sweep/0", job)):
        with pytest.raises(RequestError, match=f"^resume={tmp_path}/{name}: .*{why}"):
            parse([f"resume={tmp_path}/{name}"], GPU)


@pytest.mark.parametrize("more", [(), ("seed=1",), ("hydra.run.dir=new",), ("-m", "hydra.sweep.dir=new", "seed=1,2")])
def test_what_is_no_run_is_not_resumed(more: tuple[str, ...], tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "notes").mkdir()
    done = ask(f"resume={tmp_path}/notes", *(word.replace("new", f"{tmp_path}/new") for word in more))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: resume={tmp_path}/notes: ")
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [tmp_path / "notes"]


def test_the_run_that_may_be_meant_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose folder's name is near, else the newest; a sweep if a sweep is asked for."""
    monkeypatch.chdir(tmp_path)
    for second, name in enumerate(("day1/10-00-00", "day1/12-00-00-sweep/0", "day2/11-00-00")):
        codec.save(MEASURED, Path("outputs", name))
        os.utime(Path("outputs", name, codec.FILE), (second, second))
    for typed, found in (
        (["resume=elsewhere"], "day2/11-00-00"),
        (["resume=outputs/day1/10-00-01", "seed=1"], "day1/10-00-00"),
        (["resume=outputs/day2/11-00-00", "seed=1,2", "-m"], "day1/12-00-00-sweep"),
    ):
        with pytest.raises(RequestError, match=f"; did you mean 'outputs/{found}'\\?$"):
            parse(typed, GPU)
    assert resumed("resume=outputs/day1/12-00-00-sweep", "seed=1,2", "--multirun") == []
    assert resumed("resume=elsewhere", "--help") == []


def test_a_users_config_folder_is_read_beside_the_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """./conf, unless another one is named; the program's own files come first."""
    (tmp_path / "conf" / "stage").mkdir(parents=True)
    assert parse(["stage=half"], GPU).flags == []
    monkeypatch.chdir(tmp_path)
    assert parse(["stage=half"], GPU).words == ["stage=half", "--config-dir", "conf"]
    assert parse(["stage=half", "--config-dir", "mine"], GPU).words == ["stage=half", "--config-dir", "mine"]
    codec.save(replace(MEASURED, command="python -m pipeline preset=smoke"), Path("run"))
    assert resumed("resume=run") == resumed("resume=run", "--cfg", "job") == ["preset=smoke"]


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["pipeline", "--package", "stage.nosuch", "--cfg", "job"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    assert "package 'stage.nosuch' not found in config" in capsys.readouterr().err
