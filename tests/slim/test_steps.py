"""Fewer steps and cached features of diffusers' networks: parts answer as the whole, and the gate sees what is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.checkpoint import save as save_weights
from models.training import Drawn, batches
from pipeline.errors import InputError
from pipeline.records.goals import Task
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.slim.command import main
from pipeline.slim.steps import parts_of
from tests.benchmarks.denoising_rows import learn
from tests.export.recorded import run_folder, stage
from tests.slim import nets

diffusers = pytest.importorskip("diffusers")
SIDE, STEPS = 16, 8
LEVELS = ("block_out_channels", "down_block_types", "up_block_types")
OPTIONS: dict[str, Any] = {
    "sample_size": SIDE, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "block_out_channels": [16, 16, 32],
    "norm_num_groups": 8, "attention_head_dim": 8,
    "down_block_types": ["DownBlock2D", "DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D", "UpBlock2D"],
}  # fmt: skip
CONDITION: dict[str, Any] = {
    "sample_size": SIDE, "in_channels": 4, "out_channels": 4, "layers_per_block": 2, "block_out_channels": [16, 32],
    "norm_num_groups": 8, "attention_head_dim": 8, "cross_attention_dim": 12,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}  # fmt: skip


class Around(nn.Module):
    """A user's module around the network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"unet": net})

    def forward(self, *inputs: Tensor) -> Tensor:
        answer: Tensor = self.inner["unet"](*inputs).sample
        return answer


def net_of(cls: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = getattr(diffusers, cls)(**options)
    return net.eval()


@pytest.mark.parametrize(
    ("cls", "options", "others"),
    [("UNet2DModel", OPTIONS, []), ("UNet2DConditionModel", CONDITION, [torch.randn(2, 5, 12)])],
)
def test_the_outer_level_alone_answers_as_the_whole(cls: str, options: dict[str, Any], others: list[Tensor]) -> None:
    net = Around(net_of(cls, options)).eval()
    inputs = [torch.randn(2, options["in_channels"], SIDE, SIDE), torch.tensor([40, 900]), *others]
    before = {name: type(part) for name, part in net.named_modules()}
    whole, shallow = parts_of(net, ["sample", "timestep"])
    with torch.inference_mode():
        expected, both = net(*inputs), whole(*inputs)
        answer = shallow(*inputs, both[:, options["out_channels"] :])
    assert torch.equal(both[:, : options["out_channels"]], expected)
    assert torch.equal(answer, expected)
    assert {name: type(part) for name, part in net.named_modules()} == before
    counts = [sum(part.numel() for part in each.parameters()) for each in (net, whole, shallow)]
    assert counts[0] == counts[1] > 1.5 * counts[2]


def test_both_parts_can_be_exported() -> None:
    net = Around(net_of("UNet2DModel", OPTIONS)).eval()
    inputs = (torch.randn(1, 1, SIDE, SIDE), torch.tensor([40]))
    whole, shallow = parts_of(net, ["sample", "timestep"])
    with torch.no_grad():
        both = whole(*inputs)
        for part, given in ((whole, inputs), (shallow, (*inputs, both[:, 1:]))):
            program = torch.export.export(part, given).module()
            assert torch.allclose(program(*given)[:, :1], both[:, :1], atol=1e-5)


@pytest.mark.parametrize(
    ("net", "inputs", "said"),
    [
        (lambda: nn.Conv2d(1, 1, 1), [], "Conv2d: cached steps are for diffusers' UNet2DModel and UNet2DCondition"),
        (
            lambda: net_of("UNet2DModel", OPTIONS | {key: OPTIONS[key][-1:] for key in LEVELS}),
            [],
            "UNet2DModel (1 level, AttnDownBlock2D and UpBlock2D outermost): its outermost level doesn't run alone",
        ),
        (
            lambda: net_of("UNet2DConditionModel", CONDITION),
            ["sample", "mid_block_additional_residual"],
            "mid_block_additional_residual goes into the deep blocks at every step; measure without it",
        ),
    ],
    ids=["another", "one level", "residuals"],
)  # fmt: skip
def test_what_cannot_be_split_is_refused_in_one_line(net: Any, inputs: list[str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        parts_of(net(), inputs)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def run_of(folder: Path, net: nn.Module, weights: Path | None) -> Path:
    """The folder of a run with a tiny denoising network; its weights are random without a file."""
    inputs, draw = folder / "inputs.safetensors", torch.Generator().manual_seed(1)
    latents = torch.randn(4, 1, SIDE, SIDE, generator=draw)
    save_file({"sample": latents, "timestep": torch.tensor([999, 600, 300, 10])}, inputs)
    if weights:
        save_weights(net, weights, {})
    model = ModelSpec("tiny", "diffusers.UNet2DModel", OPTIONS, str(weights) if weights else None, output="sample")
    data = DataSpec("tensors", str(inputs), batch_size=2, batches=3)
    return nets.run_of(folder, model, data, task=Task("diffusion", steps=STEPS))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a network that was trained for seconds."""
    folder, net = tmp_path_factory.mktemp("diffusion"), net_of("UNet2DModel", OPTIONS)
    grey = batches(Drawn("train", 32, channels=1, side=SIDE), torch.device("cpu"))
    learn(net, torch.cat([image for image, _ in grey]) / 2, 8, 2e-3, steps=60)
    return run_of(folder, net, folder / "weights.safetensors")


def loops_of(words: str, run: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, each loop of steps.json by its name, and the page."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # eager switches it off
    code = main(["steps", str(run), "--stage", "eager", "--out", str(out), *words.split()])
    document = json.loads((out / "steps.json").read_text())
    return code, {loop["name"]: loop for loop in document["loops"]}, (out / "steps.html").read_text()


def test_each_way_is_timed_and_judged_by_its_final_images(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--fewer 2,4 --every 2 --rounds 3 --min-psnr 20 --min-ssim 0.7"
    code, loops, page = loops_of(words, run, tmp_path, monkeypatch)
    cached = "whole network every 2 steps"
    assert set(loops) == {"full loop", "4 steps", "2 steps", cached, f"4 steps, {cached}"}
    full = loops["full loop"]
    assert (full["faster"], full["psnr"], full["problem"]) == (1.0, None, "")  # None: infinite
    assert full["ssim"] == pytest.approx(1.0, abs=1e-6)
    assert loops["2 steps"]["faster"] > loops["4 steps"]["faster"] > 1.2
    assert (loops[cached]["problem"], code) == ("", 0)
    assert "random" not in page
    assert all(name in capsys.readouterr().out or name in page for name in loops)


def test_one_step_misses_the_gate(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, loops, _ = loops_of("--fewer 8 --every 9 --rounds 1", run, tmp_path, monkeypatch)
    assert set(loops) == {"full loop", "1 step"}
    assert (code, loops["1 step"]["problem"]) == (1, "PSNR below 30 dB, SSIM below 0.95")


def decoded(latents: Tensor) -> Tensor:
    return latents.repeat_interleave(2, -1)


def far(images: Tensor, right: Tensor) -> Tensor:
    assert images.shape[-1] == 2 * SIDE
    return (images - right).abs().flatten(1).mean(1)


def test_images_of_own_decoders_are_judged_by_own_distances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With random weights, of which the page says that their images mean nothing."""
    run = run_of(tmp_path, net_of("UNet2DModel", OPTIONS), None)
    words = (
        f"--fewer 4 --every 9 --rounds 1 --decoder {__name__}.decoded --perceptual {__name__}.far --max-perceptual 1e-9"
    )
    code, loops, page = loops_of(words, run, tmp_path, monkeypatch)
    assert (loops["full loop"]["perceptual"], loops["full loop"]["problem"]) == (0.0, "")
    assert (code, "perceptual distance above 1e-09" in loops["2 steps"]["problem"]) == (1, True)
    assert "The weights are random" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rounds 0", "0: expected an integer ≥ 1"),
        ("--every 2,1", "2,1: expected integers ≥ 2, such as 2,3,5"),
        ("--decoder decode", "decode: expected a function with its module"),
        ("--min-psnr nan", "nan: expected a number above 0"),
        ("--steps 1001", "--steps: 1001: expected an integer from 1 to 1000"),
        ("--max-perceptual 0.1", "--max-perceptual: name the function"),
        ("--decoder tests.slim.nowhere", "tests.slim.nowhere: expected a function with its module"),
        ("--decoder sys.exit", "--decoder sys.exit: "),
        ("--decoder builtins.len", "--decoder builtins.len: TypeError: it returned int, not a tensor"),
        ("--out /dev/null/x", "--out /dev/null/x: can't be written (Not a directory)"),
        ("--stage eagr", "--stage eagr: the run has no such stage; did you mean 'eager'?"),
    ],
)
def test_a_wrong_request_is_one_line(words: str, said: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["steps", str(run), *words.split()])
    except SystemExit as ended:  # argparse's own
        code = int(ended.code or 0)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "error: " in each]
    assert code == 2
    assert said in line


def test_a_run_without_a_loop_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", str(run_folder(tmp_path / "run", [stage("eager")]))]) == 2
    said = "error: steps are of a denoising loop, and the run has task=segmentation\n"
    assert capsys.readouterr().err == said
