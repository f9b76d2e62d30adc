"""The sceptic's script that a run leaves: short, plain, and it gives a ratio of its own."""

import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pipeline.inputs.input_contract import InputContract
from pipeline.orchestrate import check_script
from pipeline.records import codec
from pipeline.records.goals import Task
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.run_record import RunRecord
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.input_nets import Larger, Volumes
from tests.made_up_request import asked, changed
from tests.process_state import own_switches
from tests.report import made_up_run as made_up

SMALL = asked(
    model=ModelSpec("unet", "models.unet.UNet", {"in_channels": 3, "classes": 2, "base": 4, "depth": 2}),
    data=DataSpec("samples", size=64, batch_size=2),
)


def on_a_gpu(baseline: str = "amp", **ratios: float) -> RunRecord:
    stages = [stage_record(name, steady_pair(value, a=baseline, b=name)) for name, value in ratios.items()]
    return run_record(stages, environment=made_up.environment(), baseline=baseline)


def test_it_is_short_and_plain() -> None:
    for run in (on_a_gpu(fused=2.0), on_a_gpu("eager", half=2.0)):
        text = check_script.script(run)
        compile(text, "check.py", "exec")
        assert len(text.splitlines()) <= 45
        assert max(map(len, text.splitlines())) <= 120
        assert "pipeline.measure" not in text


def test_autocast_lays_nothing_out_for_a_net_that_doesn_t_take_it() -> None:
    run = on_a_gpu(fused=2.0)
    of_nchw = replace(run, stages=[replace(stage, net_layout="NCHW") for stage in run.stages])
    assert "torch.channels_last" in check_script.script(run)
    assert "torch.channels_last" not in check_script.script(of_nchw)
    compile(check_script.script(of_nchw), "check.py", "exec")


def test_it_times_the_winner_beside_the_baseline() -> None:
    today, fp32 = check_script.script(on_a_gpu(fused=2.0, half=1.2)), check_script.script(on_a_gpu("eager", half=2.0))
    assert '["fused"])[0]' in today
    assert 'torch.autocast("cuda", torch.float16)' in today
    assert "(plain, [True] * 3)" in today
    assert '["half"])[0]' in fp32
    assert "autocast" not in fp32
    assert "(plain, [False] * 3)" in fp32


def test_a_run_that_never_described_its_machine_leaves_none(tmp_path: Path) -> None:
    check_script.write(replace(on_a_gpu(fused=2.0), environment=None), tmp_path)
    assert not (tmp_path / "check.py").exists()


def kept(folder: Path, **settings: Any) -> Path:
    """A run on a CPU, of eager and autocast, with settings of its own; its script's path."""
    measured = {name: stage_record(name, steady_pair(1.0)) for name in ("eager", "amp")}
    stages = [changed(stage, target=f"pipeline.stages.{name}") for name, stage in measured.items()]
    environment = replace(made_up.environment(), device="cpu")
    found = replace(run_record(stages, environment=environment), config=replace(SMALL, **settings))
    codec.save(found, folder)
    check_script.write(found, folder)
    return folder / check_script.FILE


LINE = (
    r"eager: ([\d.]+) ms, eager: ([\d.]+) ms a call, ratio ([\d.]+), in 3 rounds ([\d.]+) to ([\d.]+)"
    r"(: too far apart to tell, run it on an idle machine)?\n"
)


def volumes(folder: Path) -> dict[str, Any]:
    scans = folder / "scans"
    scans.mkdir()
    np.save(scans / "a.npy", np.arange(8**3, dtype=np.float32).reshape(8, 8, 8))
    return {
        "model": ModelSpec("mine", "tests.input_nets.Volumes"),
        "data": DataSpec("volume", str(scans), None, 8, 1, 3, InputContract(1, "zscore", (), (), 1.0)),
    }


def tensors(folder: Path) -> dict[str, Any]:
    path, states = folder / "inputs.safetensors", torch.zeros(4, 5, 6)
    save_file({"timestep": torch.arange(4), "encoder_hidden_states": states, "sample": torch.zeros(4, 4, 8, 8)}, path)
    model = ModelSpec("mine", "tests.input_nets.Conditioned")
    return {"model": model, "data": DataSpec("tensors", str(path), batch_size=2), "task": Task("diffusion")}


def a_file(folder: Path) -> dict[str, Any]:
    """A net as torch.export wrote it, and the program's own images."""
    path = folder / "net.pt2"
    torch.export.save(torch.export.export(Larger().eval(), (torch.zeros(2, 3, 16, 16),)), path)
    return {"model": ModelSpec("file", file=str(path)), "data": DataSpec("stain", size=16, batch_size=2)}


@pytest.mark.parametrize("given", [lambda _: {}, volumes, tensors, a_file], ids=["images", "volumes", "tensors", "net"])
def test_it_runs_for_whatever_a_net_takes_and_gives_a_ratio(
    given: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = kept(tmp_path, **given(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(script), "eager", "0.001"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with own_switches():
        runpy.run_path(str(script), run_name="__main__")
    said = re.fullmatch(LINE, capsys.readouterr().out)
    assert said
    one, other, ratio, least, most = map(float, said.groups()[:5])
    assert ratio == pytest.approx(one / other, rel=0.05)
    assert least <= most
    if not 1.09 < most / least < 1.11:  # so near the border four digits don't tell
        assert bool(said[6]) == (most > 1.1 * least)
    assert sys.path[-1] == ""  # the checkout it is run from, which needn't be installed; behind what is


def test_autocast_lays_out_volumes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, seen = Volumes(), []
    theirs.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].stride()))
    names: dict[str, Any] = {"torch": torch, "theirs": theirs}
    exec(check_script.PLAIN_AUTOCAST.replace('"cuda", torch.float16', '"cpu", torch.bfloat16'), names)
    with torch.inference_mode():
        assert names["plain"](torch.zeros(1, 1, 4, 4, 4)).dtype == torch.bfloat16
    assert names["laid"](torch.zeros(2, 3, 4, 4, 4)).stride()[1] == 1
    assert names["laid"](torch.zeros(2, 3, 4)).stride() == (12, 4, 1)
    assert theirs.head.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert seen
