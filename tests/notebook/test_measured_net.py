"""A net that lives in a notebook is measured as the command line would, or is refused; docs/notebook.ipynb runs."""

import json
import re
import sys
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import fx, nn

import pipeline
import pipeline.measure.accuracy
from models.build import build_model
from models.image_batches import to_batch
from models.unet import UNet
from pipeline.cli.arguments import parse
from pipeline.command_line import worded
from pipeline.config.request_error import RequestError
from pipeline.inputs.folders import folder_samples
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.notebook import measured_net
from pipeline.notebook.commands import command
from pipeline.notebook.given import network, save
from pipeline.records import codec
from pipeline.records.codec import RecordError
from tests.fake_machine import run_record
from tests.predict.made_up_runs import OPTIONS, stages


class Asked(dict[str, Any]):
    """The words that the command was given, by their keys; a run's record is what it leaves.

    Attributes:
        beside: the end of the run's folder, where another run has taken the one that was asked for.
    """

    beside = ""

    def __call__(self, module: str, words: list[str], folders: list[Path]) -> tuple[int, str]:
        parsed = OverridesParser.create().parse_overrides(list(words))
        self.update({str(part.input_line).partition("=")[0]: part.value() for part in parsed})
        run = run_record(stages())
        options = {"file": asked_text(self, "+model.options.file")}
        run = replace(run, config=replace(run.config, model=replace(run.config.model, options=options)))
        codec.save(run, Path(asked_text(self, "hydra.run.dir") + self.beside))
        return 0, ""


def test_a_table_is_text_in_jupyter_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    codec.save(run_record(stages()), tmp_path)
    assert "half" in pipeline.load_run(tmp_path).table()


def test_jupyter_shows_a_refusal_in_one_line(tmp_path: Path) -> None:
    for refused, said in (
        (lambda: pipeline.load_run(tmp_path), "RecordError: .*results.json: no such file; name the folder of a run"),
        (lambda: measured_net.stages_asked(["halff"]), "RequestError: stages: no such stage 'halff'; did you mean "),
    ):
        with pytest.raises((RecordError, RequestError)) as caught:
            refused()
        (line,) = caught.value._render_traceback_()
        assert re.match(said, line)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    monkeypatch.chdir(tmp_path)
    found = Asked()
    monkeypatch.setattr(measured_net, "command", found)
    return found


def test_the_net_and_its_batches_go_over_as_they_are(asked: Asked) -> None:
    net, images = UNet(**OPTIONS).eval(), 9 * torch.randn(4, 3, 16, 16)
    labels = np.tile(np.arange(3, dtype=np.int64), (4, 16, 6))[:, :, :16]
    run = pipeline.measure(
        net, list(images.split(2)), ["half", "openvino"], labels=labels, folder="it's",
        **{"measure": "smoke", "data.batches": 3},
    )  # fmt: skip
    assert run.winner == "half"
    assert repr(run) == 'Run("it\'s": eager, half, fp8, torchscript; winner half)'
    assert "half" in run.table()
    assert run.stages["fp8"].status == "failed"
    assert repr(run.stages["half"]) == "StageSummary('half': ok)"
    assert repr(run.summary) == "RunSummary(eager, half, fp8, torchscript; winner half)"
    assert (asked["+model.options.made_of"], asked["measure"], asked["data.batch_size"]) == (
        "models.unet.UNet", "smoke", 2,
    )  # fmt: skip
    assert (asked["stage"], asked["model.trained"]) == (["half", "openvino"], True)
    assert torch.equal(built(asked)(images), net(images))
    contract = InputContract(normalize="own", mean=(0.0,), std=(1.0,), scale=asked["data.scale"])
    rules = LabelRules(pattern=asked_text(asked, "data.label_pattern"))
    named, _ = folder_samples(
        asked_text(asked, "data.path"), asked_text(asked, "data.labels"), contract, rules, volumes=False
    )
    assert torch.equal(to_batch(np.stack([part.image for part in named]), contract), images)
    assert (np.stack([part.label for part in named if part.label is not None]) == labels).all()
    with pytest.raises(pipeline.RequestError, match="another run's; name a new one"):
        pipeline.measure(net, images, folder="it's")


def built(asked: Asked) -> nn.Module:
    options = {key: asked_text(asked, f"+model.options.{key}") for key in ("file", "made_of")}
    return build_model(asked["model.target"], options, None, seed=0)


def asked_text(asked: Asked, key: str) -> str:
    return str(getattr(asked[key], "text", asked[key]))


IMAGES = torch.ones(2, 3, 8, 8)


class Twice(nn.Module):
    """A net whose answer depends on more than its class, options and weights."""

    def __init__(self, times: float = 1.0) -> None:
        super().__init__()
        self.times, self.layer = times, nn.Conv2d(3, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images) * self.times


class NeverAgain(Twice):
    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.layer.weight.data.copy_(weights)
        self.register_forward_hook(doubled)


def doubled(net: nn.Module, inputs: tuple[torch.Tensor, ...], answer: torch.Tensor) -> torch.Tensor:
    return 2 * answer


def changed_afterwards() -> Twice:
    net = Twice(3.0)
    net.layer = nn.Conv2d(3, 4, 3, padding=1)
    return net


@pytest.mark.parametrize("net", [NeverAgain(torch.ones(2, 3, 1, 1)), changed_afterwards(), Twice(2.0).half().train()])
def test_the_object_itself_is_measured(asked: Asked, net: nn.Module) -> None:
    """Attributes, hooks, arguments and changed layers go over; its class is not called, and no seed is moved."""
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    pipeline.measure(net, IMAGES, "half")
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(built(asked)(IMAGES), net.float().eval()(IMAGES))


def test_runs_of_one_second_and_of_one_folder_are_kept_apart(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_net, "datetime", Frozen)
    one, two = pipeline.measure(Twice(), IMAGES, "half"), pipeline.measure(Twice(), IMAGES, "half")
    assert (one.folder.name, two.folder.name) == ("12-00-00", "12-00-00-2")
    asked.beside = "-9"
    three = pipeline.measure(Twice(), IMAGES, "half", folder="mine")
    assert three.folder.name == "mine-9"
    assert three.record.config.model.options["file"] == str(Path("mine/given/network.pt").resolve())
    with pytest.raises(pipeline.RequestError, match="another run's"):
        pipeline.measure(Twice(), IMAGES, "half", folder="mine")


class Frozen(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Frozen":
        return cls(2026, 1, 2, 12, tzinfo=tz)


def test_what_a_command_says_is_dropped_without_a_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert command("pipeline.report", ["--help"])[0] == 0


def with_a_lambda() -> Twice:
    net = Twice()
    net.last = lambda x: x  # type: ignore[assignment]
    return net


def graph_of(net: nn.Module) -> nn.Module:
    return torch.export.export(net, (torch.ones(2, 3, 8, 8),)).module()


def test_a_graph_of_fx_is_saved_as_any_network(tmp_path: Path) -> None:
    net, image = fx.symbolic_trace(nn.Conv2d(3, 2, 1)), torch.ones(1, 3, 8, 8)
    loaded = network(str(save(net, tmp_path)), "GraphModule")
    assert torch.equal(loaded(image), net(image))


@pytest.mark.parametrize(
    ("net", "given", "reason"),
    [
        (type("Here", (Twice,), {"__module__": "__main__"})(), {}, "put it into a file such as nets.py"),
        (with_a_lambda(), {}, "can't be saved for the workers"),
        (torch.jit.trace(nn.Conv2d(3, 2, 1), IMAGES), {}, r"model=file model\.file=net\.ts runs it"),
        (graph_of(nn.Conv2d(3, 2, 1)), {}, r"model=file model\.file=net\.pt2 runs it"),
        (Twice(), {"images": IMAGES * 1j}, "images of complex numbers"),
        (Twice(), {"images": torch.ones(3, 8, 8)}, r"images of \[3, 8, 8\]"),
        (Twice(), {"images": IMAGES * torch.nan}, "NaN or infinite"),
        (Twice(), {"images": []}, "images of nothing"),
        (Twice(), {"labels": torch.ones(2, 8, 8)}, "labels of float32"),
        (Twice(), {"stages": ["hlaf"]}, "no such stage 'hlaf'; did you mean 'half'"),
    ],
)
def test_what_no_worker_could_load_is_refused(asked: Asked, net: nn.Module, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(pipeline.RequestError, match=reason):
        pipeline.measure(net, **{"images": IMAGES, **given})
    assert not asked, "nothing was started"
    assert not [*Path("outputs").rglob("given")]


@pytest.mark.parametrize("value", ["a", "tr'ue", "true", "1e4", "a b=[c]", "back\\slash'", "$x", None, 0.5, [1, "x,y"]])
def test_values_come_back_from_hydras_grammar(value: object) -> None:
    parsed = OverridesParser.create().parse_override(f"key={worded(value)}").value()
    assert [getattr(part, "text", part) for part in (parsed if isinstance(parsed, list) else [parsed])] == (
        value if isinstance(value, list) else [value]
    )


def test_the_rungs_are_those_that_were_asked_for() -> None:
    with initialize_config_dir(str(measured_net.CONF), version_base="1.3"):
        asked = compose("config", parse([measured_net.stages_asked(["openvino", "half", "eager"])], ["a GPU"]).words)
    assert [rung.name for rung in asked.stage.rungs.values()] == ["eager", "half", "openvino"]


def test_rooms_of_a_functions_name_hide_no_function() -> None:
    assert callable(pipeline.measure)
    assert pipeline.measure.__module__ == "pipeline.notebook.measured_net"
    with pytest.raises(AttributeError, match="no attribute 'meassure'"):
        getattr(pipeline, "meassure")  # noqa: B009


NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Cell by cell in an empty folder: a net is measured, read again, and makes masks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("1 {} (90, 120) [")
    assert names["run"].stages["half"].status == "ok"
    assert names["run"].report.is_file()
    assert [path.name for path in (tmp_path / "masks").glob("*.png")] == ["another_size.png"]
