"""The bill of materials names what is installed."""

import json

import pytest

from tests.house.sbom import ROOT, components, main


@pytest.mark.parametrize("pins", sorted((ROOT / "constraints").glob("python*.txt")), ids=lambda path: path.stem)
def test_every_pin_is_a_component(pins: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(pins)]) == 0
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "unet-ladder")
    assert {"torch", "hydra-core", "safetensors"} <= {part["name"] for part in bill["components"]}
    assert len({part["bom-ref"] for part in bill["components"]}) == len(bill["components"])


def test_a_pin_becomes_a_package_url() -> None:
    made = components("# a remark\n\nRuamel.Yaml_x==1.0+cu130 ; python_version < '3.12'\n")
    assert [part["purl"] for part in made] == ["pkg:pypi/ruamel-yaml-x@1.0%2Bcu130"]


@pytest.mark.parametrize("line", ["torch", "torch>=2", "torch @ file:///elsewhere", "-r others.txt"])
def test_what_is_no_pin_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a pin"):
        components(line)
