"""The figures of docs/a-billion-images.md follow from its inputs."""

from pathlib import Path

from tests.benchmarks.fleet import Inputs, drawn, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "a-billion-images.md"


def test_twice_the_rate_takes_half_the_gpus() -> None:
    once, twice = ({name: value for name, _, value in table(Inputs(rate=rate))} for rate in (500.0, 1000.0))
    assert (once["GPUs"], twice["GPUs"]) == ("29", "15")
    assert once["network in, Gbit/s"] == twice["network in, Gbit/s"] == "5.8"
    assert once["GPU hours, price a day"] == "2,088"


def test_the_page_has_the_table_of_its_inputs() -> None:
    assert drawn(Inputs()) in PAGE.read_text(encoding="utf-8")
