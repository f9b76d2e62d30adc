"""Secrets and the machine's folders are removed from the files of a run."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.cli import app
from pipeline.cli.progress import Progress
from pipeline.command_line import REFUSED
from pipeline.orchestrate.spawning import keep_log
from pipeline.records import codec
from pipeline.records.masking import MaskedBytes, is_typed_secret, masked, referred_to, values_to_hide, without_places
from pipeline.records.run_record import RunRecord
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

TOKEN = "hf_s3cr3t-0f-the-user"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)


@pytest.mark.parametrize("name", ["MY_TOKEN", "API_KEY", "apikey", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "KEYS"])
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert values_to_hide(environment={name: TOKEN}) == {TOKEN: f"${{oc.env:{name}}}"}


@pytest.mark.parametrize("name", ["HOME", "KEYBOARD_LAYOUT", "TOKENIZERS_PARALLELISM", "PATH"])
def test_other_values_are_hidden_where_the_config_refers_to_them(name: str) -> None:
    assert not values_to_hide(environment={name: TOKEN})
    assert values_to_hide([name], {name: TOKEN, "THREADS": "8"}) == {TOKEN: f"${{oc.env:{name}}}"}
    assert not values_to_hide(["THREADS"], {"THREADS": "8"})


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("model.options.token", TOKEN, True),
        ("model.options.use_api_key", TOKEN, True),
        ("model.options.token", "${oc.env:MY_TOKEN}", False),
        ("model.options.class_token", "learnable", False),
        ("model.checkpoint_key", "params_ema2", False),
        ("model.options.num_tokens", "a77_of_many", False),
        ("model.options.url", f"https://me:{TOKEN}@host/weights", True),
        ("model.options.url", "https://me:${oc.env:MY_TOKEN}@host/weights", False),
        ("data.path", "s3://bucket/a:b@c", False),
        ("seed", 5, False),
    ],
)
def test_a_typed_secret_is_told_from_other_options(key: str, value: object, secret: bool) -> None:
    assert is_typed_secret(key, value) is secret


def test_a_typed_secret_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says where it would be kept, and how to give it; it doesn't repeat it."""
    typed = "hf_another1secret"
    words = ["model=custom", "model.target=nets.Net", f"+model.options.token={typed}"]
    monkeypatch.setattr("sys.argv", ["pipeline", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == REFUSED
    said = "".join(capsys.readouterr())
    assert typed not in said
    assert "type model.options.token='${oc.env:TOKEN}'" in said


def test_progress_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1) as progress:
        progress.say(f"net x{TOKEN} on the CPU")
    assert "net x${oc.env:MY_TOKEN} on the CPU" in "".join(capsys.readouterr())


def test_references_are_found_wherever_they_stand_the_longest_value_first() -> None:
    config = {"model": {"options": {"keys": ["${oc.env:ONE}", {"x": "a/${oc.env:TWO,default}/b"}]}}, "seed": 0}
    assert referred_to(config) == {"ONE", "TWO"}
    hidden = values_to_hide(environment={"A_KEY": "12345678", "B_KEY": "12345678-and-more"})
    assert masked({"12345678": ["12345678-and-more", 5]}, hidden) == {"${oc.env:A_KEY}": ["${oc.env:B_KEY}", 5]}


def test_no_record_holds_a_secret(tmp_path: Path) -> None:
    run = made_up.run()
    stage = changed(run.stages[0], reason=f"refused {TOKEN}", details={TOKEN: [TOKEN]}, options={"token": TOKEN})
    leaky = replace(run, command=f"python -m pipeline +stage.token={TOKEN}", stages=[stage])
    assert TOKEN not in codec.save(leaky, tmp_path).read_text()
    shown = codec.without_secrets(leaky)
    assert text_of(codec.load(tmp_path)) == text_of(shown) == text_of(leaky).replace(TOKEN, "${oc.env:MY_TOKEN}")
    assert shown.stages[0].spec.options == {"token": "${oc.env:MY_TOKEN}"}


def text_of(run: RunRecord) -> str:
    return json.dumps(codec.to_json(run))


def test_the_program_sees_the_variable_in_place_of_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    argv = ["unet-ladder", f"+stage.token={TOKEN}", f"data.path=/a/{TOKEN}/b", "preset=smoke"]
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(app, "answer", lambda line: seen.extend(line.words))
    assert app.main() == 0
    assert seen[:3] == ["+stage.token=${oc.env:MY_TOKEN}", "data.path=/a/${oc.env:MY_TOKEN}/b", "preset=smoke"]


def test_no_log_holds_a_secret(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, f"before {TOKEN} after".encode())
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stdout:
        keep_log(stdout, tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text() == "before ${oc.env:MY_TOKEN} after"


@settings(max_examples=60)
@example([b"secr"], b"et-1")  # which chance alone finds in some runs and misses in others
@given(st.lists(st.binary(max_size=9) | st.sampled_from([b"secret-1", b"secr", b"et-1", b"s"])), st.binary(max_size=5))
def test_pieces_are_masked_as_the_whole_is(pieces: list[bytes], end: bytes) -> None:
    hidden = {"secret-1": "S"}
    stream = MaskedBytes(hidden)
    written = b"".join([*(stream.add(piece) for piece in [*pieces, end]), stream.rest()])
    assert written == b"".join([*pieces, end]).replace(b"secret-1", b"S")


def test_a_file_is_named_from_its_package_or_its_deepest_folder_on() -> None:
    """In Dynamo's messages on torch's files, and on the user's files in Python's path."""
    said = f"Dynamo marks `isinstance` in file `{torch.__file__}`"
    assert without_places(said) == "Dynamo marks `isinstance` in file `torch/__init__.py`"
    assert without_places(f"L['x'] at {Path.cwd() / 'nets.py'}:3") == "L['x'] at nets.py:3"
    # Folders of Python's path may be nested; a common prefix of names is no match
    roots = ["/opt/env", os.sep, "/opt/env/lib/site-packages"]
    assert without_places("/opt/env/lib/site-packages/torch/jit.py", roots) == "torch/jit.py"
    assert without_places("/opt/environment/a.py and /etc/b.py", roots) == "/opt/environment/a.py and /etc/b.py"


def test_a_path_is_cut_where_it_begins_alone() -> None:
    for said in ("/opt/app/foo.py", "../app/foo.py", "./app/foo.py", "my-/app/foo.py"):
        assert without_places(said, ["/app"]) == said
    assert (
        without_places("""at '/app/a.py', (/app/b.py) of path=/app/c.py""", ["/app"])
        == "at 'a.py', (b.py) of path=c.py"
    )
    assert without_places("/a+b/c.py /aab/c.py", ["/a+b"]) == "c.py /aab/c.py"


def test_a_working_folder_that_was_removed_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert without_places(f"in {torch.__file__}") == "in torch/__init__.py"
    assert without_places("/app/a.py and lib/b.py", ["lib", "/app"]) == "a.py and lib/b.py"
