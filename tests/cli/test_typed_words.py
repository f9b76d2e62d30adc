"""Words that can't be meant as they were typed: a key as a flag, or one key with two values, in every program here."""

import re
from collections.abc import Callable

import pytest

from models import train
from pipeline.cli.config_errors import known_keys
from pipeline.cli.preset import check_typed
from pipeline.command_line import Parser, given_twice
from pipeline.config.request_error import RequestError
from pipeline.predict import predict_command
from pipeline.report import redraw_command as report
from tests.cli.conftest import ROOT, Ask


def typed(line: str) -> None:
    check_typed(line.split(), lambda: known_keys(ROOT / "conf"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--preset smoke", "--preset: no such flag; write preset=smoke"),
        ("stage=eager --preset=smoke -m", "--preset: no such flag; write preset=smoke"),
        ("--prest smoke", "--prest: no such flag; write preset=smoke"),
        ("--batch-size 8", "--batch-size: no such flag; write data.batch_size=8"),
        ("--data.batch_size 8", "--data.batch_size: no such flag; write data.batch_size=8"),
        ("--model.options.width 32", "--model.options.width: no such flag; write +model.options.width=32"),
        ("--model.options.base=32", "--model.options.base: no such flag; write model.options.base=32"),
        ("--encoder-name resnet18", "--encoder-name: no such flag; write model.options.encoder_name=resnet18"),
        ("--stage.rungs.half.dtype bf16", "--stage.rungs.half.dtype: no such flag; write stage.rungs.half.dtype=bf16"),
        ("--model.optons.base 8", "--model.optons.base: no such flag; write model.options.base=8"),
        ("--strict stage=eager", "--strict: no such flag; write strict=VALUE"),
        ("--threads --cfg job", "--threads: no such flag; write threads=VALUE"),
    ],
)
def test_a_key_that_is_typed_as_a_flag_is_told_as_it_must_be_written(line: str, said: str) -> None:
    """Where Hydra's nearest flag was named, such as --resolve for --preset."""
    with pytest.raises(RequestError) as refused:
        typed(line)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stage=eager stage=compile", "stage: given twice, 'eager' and 'compile'; leave one out"),
        ("-m data.batch_size=1,2 threads=1 ++data.batch_size=4", "data.batch_size: given twice, '1,2' and '4'"),
    ],
)
def test_a_key_that_is_given_two_values_is_refused(line: str, said: str) -> None:
    """Where the last was taken without a word."""
    with pytest.raises(RequestError) as refused:
        typed(line)
    assert str(refused.value).startswith(said)


def test_folders_that_are_named_as_keys_with_values_are_no_keys() -> None:
    """As the jobs of a sweep are named, where the user has them so."""
    assert given_twice(["out/lr=1", "out/lr=2"]) == ""
    assert given_twice(["lr=1", "lr=2"]) == "lr: given twice, '1' and '2'; leave one out"


def test_what_hydra_takes_is_taken() -> None:
    """Its flags and their beginnings; the same word again; a key that is taken out and set; a value with a dash."""
    typed("-m --cfg job --res --config-dir mine stage=eager stage=eager ~data.note +data.note=1 +note=--preset")


def test_the_program_itself_says_so(ask: Ask) -> None:
    """The flag's value is moved before the flags where Hydra reads the line."""
    refused = ask("--preset", "smoke")
    assert (refused.returncode, refused.stderr) == (2, "error: --preset: no such flag; write preset=smoke\n")


@pytest.mark.parametrize("flag", ["--version", "--vers"])
def test_the_version_is_this_program_s(flag: str, ask: Ask) -> None:
    """With those of what it stands on; Hydra told its own alone."""
    told = ask("stage=eager", flag)
    own, torch, hydra = told.stdout.split(", ")
    assert (told.returncode, told.stderr) == (0, "")
    assert re.fullmatch(r"unet-ladder \d+\.\d+\.\d+", own)
    assert re.fullmatch(r"torch \d+\.\d+\.\d+\S*", torch)
    assert re.fullmatch(r"Hydra 1\.3\.\d+\n", hydra)


@pytest.mark.parametrize(
    ("main", "line", "said"),
    [
        (report.main, "objective=memory objective=latency run", "objective: given twice, 'memory' and 'latency'"),
        (report.main, "run --objective memory", "--objective: no such flag; write objective=memory"),
        (report.main, "run --gpu-hour-price=3", "--gpu-hour-price: no such flag; write report.gpu_hour_price=3"),
        (predict_command.main, "run images --out a --out b", "--out: given twice; leave one out"),
        (predict_command.main, "run images --out=a --batch 1 --bat 2", "--bat: given twice; leave one out"),
    ],
)
def test_no_other_program_takes_the_last_of_two_in_silence(
    main: Callable[[list[str]], int], line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_training_takes_no_flag_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its words may stand between its flags."""
    monkeypatch.setattr("sys.argv", ["train", "model=unet", "--out", "a", "model.options.base=16", "--out", "b"])
    with pytest.raises(SystemExit):
        train.main()
    assert capsys.readouterr().err.startswith("error: --out: given twice; leave one out")


def test_a_flag_without_a_value_or_with_several_may_be_repeated() -> None:
    parser = Parser(prog="python -m x")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--each", action="append")
    asked = parser.parse_args(["--whole", "--whole", "--each", "a", "--each", "b"])
    assert (asked.whole, asked.each) == (True, ["a", "b"])
