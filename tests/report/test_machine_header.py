"""What the report's first lines say of the software that gave the figures."""

from dataclasses import replace

import pytest

from pipeline.analysis.run_comparison import differences
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.report.run_text import faults, inputs_at, machine, net_name, provenance, skipped
from tests.fake_machine import steady_pair
from tests.made_up_request import changed
from tests.report import made_up_run as made_up


@pytest.mark.parametrize("package", ["onnxruntime-gpu", "onnxruntime"])
def test_header_names_onnxruntime(package: str) -> None:
    """ONNX Runtime's version is named under either of the names that its wheel is installed by."""
    environment = replace(made_up.environment(), packages={"torch": "2.11.0", package: "1.31.1"})
    assert f"{package} 1.31.1" in machine(made_up.run(environment=environment)).versions.split(", ")


def test_variables_that_libraries_read_are_named_and_compared() -> None:
    plain, other = (replace(made_up.environment(), variables=each) for each in ({}, {"OMP_NUM_THREADS": "2"}))
    found = machine(made_up.run(environment=other)).versions
    assert found == f"{machine(made_up.run(environment=plain)).versions}, OMP_NUM_THREADS=2"
    first, second = (made_up.run(environment=each) for each in (plain, other))
    assert [(one.what, one.old, one.new) for one in differences(first, second)] == [("OMP_NUM_THREADS", "not set", "2")]
    assert differences(made_up.run(environment=replace(plain, variables=None)), second) == []


def test_a_gpu_has_its_own_facts_as_far_as_they_are_known() -> None:
    older = made_up.environment()
    clock = "SM clock 1980 to 1980 MHz in the samples"
    first = "compute capability 9.0, 132 multiprocessors, 140 GiB"
    assert provenance(made_up.run(environment=older)) == f"{first}, {clock}, no other process on it at the start"
    known = replace(older, uuid_sha256="ab" * 32, power_limit_watts=700.0, celsius=41)
    shared = replace(known, others_on_device=["python (7)"])
    digest = f"UUID with SHA-256 {'ab' * 8}"
    assert provenance(made_up.run(environment=shared)) == (
        f"{first}, power limit 700 W, 41 °C at the start, {clock}, {digest}, beside python (7) on it at the start"
    )
    assert provenance(made_up.run(environment=replace(older, device="cpu"))) == ""


@pytest.mark.parametrize(
    ("name", "target", "options", "said"),
    [
        ("smp", "models.library_nets.smp_net", {"architecture": "Unet", "encoder_name": "vgg13"}, "smp Unet (vgg13)"),
        ("monai", "models.library_nets.monai_net", {"net": "SegResNet"}, "monai SegResNet"),
        ("diffusers", "models.library_nets.diffusers_net", {"timestep": 10}, "diffusers"),
        ("custom", "smp.Unet", {"encoder_name": "vgg13"}, "smp.Unet (vgg13)"),
        ("custom", "mine.Net", {"net": "other"}, "mine.Net"),
    ],
)
def test_the_net_of_a_library_is_named(name: str, target: str, options: dict[str, str], said: str) -> None:
    run = made_up.run()
    found = replace(run.config, model=ModelSpec(name, target=target, options=dict(options)))
    assert net_name(replace(run, config=found)) == said


@pytest.mark.parametrize(
    ("name", "size", "depth", "said"),
    [
        ("stain", 512, None, "images at 512×512"),
        ("folder", None, None, "images at their own size"),
        ("volume", 128, None, "volumes at 128×128×128"),
        ("volume", 128, 64, "volumes at 64×128×128"),
        ("tensors", None, None, "tensors at their own size"),
    ],
)
def test_what_a_net_is_given_is_told_by_its_kind(name: str, size: int | None, depth: int | None, said: str) -> None:
    assert inputs_at(DataSpec(name, size=size, depth=depth)) == said


def test_why_a_stage_is_not_ranked_is_told_by_the_warning_s_kind() -> None:
    eager, half = made_up.run().stages[0], made_up.run().stages[4]
    elsewhere = steady_pair(2.0, b="half", device_seconds=0.001)  # of 20 ms
    astray, bare = replace(half, pairs=[elsewhere]), changed(half, name="bare", pairs=[])
    found = made_up.summary(made_up.run(stages=[eager, astray, bare]))
    (warning,) = [part for part in found.stages[1].warnings if part.code == "clocks disagree"]
    assert [*faults(found), *skipped(found)] == [
        f"half precision is not ranked: {warning.text}",
        "bare is not measured: no interleaved samples are on record",
    ]


def test_what_failed_is_named_before_what_has_no_form_here() -> None:
    absent = changed(made_up.unwell()[2], name="tf32")
    run = made_up.run(stages=[absent, *made_up.run().stages])
    assert [line.split()[0] for line in faults(made_up.summary(run))] == ["crashed", "hung", "black"]
    assert skipped(made_up.summary(run)) == "eager (TF32) and absent (needs a GPU)"
    first, _, rest = made_up.as_markdown(run).partition("<details>")
    assert "**not ranked**: hung" in first
    assert "needs a GPU" not in first
    assert "Skipped: eager (TF32) and absent (needs a GPU)." in rest
