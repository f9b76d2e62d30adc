"""Training takes any net that the configuration can name, and refuses in one line what it can't."""

from pathlib import Path

import pytest
from torch import nn

from models import checkpoint, train
from models.errors import ModelError


def test_a_net_goes_by_the_names_of_the_configuration() -> None:
    net = train.named_net(["model=unet", "model.options.base=8", "model.options.depth=1"], 0)
    assert train.first_channels(net) == 8
    other = train.named_net(["model=custom", "model.target=models.unet.UNet", "+model.options.base=24"], 0)
    assert train.first_channels(other) == 24
    assert train.first_channels(nn.Linear(3, 3)) == train.CHANNELS


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=unett"], "model is one of bottleneck_compute, .*custom, .*unet_small"),
        (["model=custom"], "model.target names no class"),
        (["model=unet", "+model.options.bas=3"], "options don't fit"),
    ],
)
def test_a_net_that_is_not_there_is_refused_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ModelError, match=said) as refused:
        train.named_net(overrides, 0)
    assert "\n" not in str(refused.value)


def test_a_net_is_trained_scored_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "weights.safetensors"
    asked = [
        "train",
        "model=unet",
        "model.options.base=8",
        "model.options.depth=1",
        "--minutes",
        "0.002",
        "--out",
        str(out),
    ]
    monkeypatch.setattr("sys.argv", asked)
    train.main()
    again = train.named_net(asked[1:4], 0)
    checkpoint.load_into(again, str(out))
    assert out.stat().st_size > 1000
