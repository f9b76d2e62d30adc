"""Changes of layout, by strides, by kernels' names, and in an exported graph."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.profiling.layout_changes import onnx_changes, order, trace_changes
from tests.profiling.traced import NCDHW, NCHW, NDHWC, NHWC, copy, launched, layer


def test_a_copy_that_turns_an_image_is_found_with_its_kernel() -> None:
    """The copy's own kernel is what it costs; it is counted once although its name would count as well."""
    events = [layer("upsample.1", 0, 20), copy(2, 10, NHWC, NCHW), *launched(1, "nchwToNhwcKernel", 4, 30, 7)]
    (found,) = trace_changes(events, 1)
    assert (found.name, found.where, found.times_per_call) == ("copy, NCHW → NHWC", "upsample.1", 1)
    assert found.seconds_per_call == pytest.approx(7e-6)


def test_a_copy_that_turns_a_volume_is_found_likewise() -> None:
    events = [copy(2, 10, NDHWC, NCDHW), *launched(1, "elementwise_kernel", 4, 30, 7), copy(40, 10, NCDHW, NDHWC)]
    there, back = trace_changes(events, 1)
    assert (there.name, there.where, there.times_per_call) == ("copy, NCDHW → NDHWC", "between layers", 1)
    assert there.seconds_per_call == pytest.approx(7e-6)
    assert back.name == "copy, NDHWC → NCDHW"
    kept = [copy(2, 10, NDHWC, NDHWC), copy(2, 10, NHWC, NHWC), *launched(1, "direct_copy", 4, 30, 7)]
    assert trace_changes(kept, 1) == []


def test_a_kernel_that_a_library_adds_is_found_by_its_name() -> None:
    events = [layer("head", 0, 20), *launched(1, "cudnn::ops::nchwToNhwcKernel", 4, 30, 6)]
    (found,) = trace_changes(events * 2, 2)
    assert (found.where, found.source, found.times_per_call) == ("head", "trace", 1)
    assert found.seconds_per_call == pytest.approx(6e-6)


def test_on_a_cpu_the_operator_is_what_it_costs() -> None:
    (found,) = trace_changes([copy(2, 10, NCHW, NHWC)], 1)
    assert found.seconds_per_call == pytest.approx(10e-6)
    assert found.where == "between layers"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [([2, 1, 4, 4], [16, 1, 4, 1]), ([2, 8, 1, 1], [8, 1, 1, 1]), ([2, 8, 1, 1, 1], [8, 1, 1, 1, 1]), ([8, 4], [4, 1])],
)
def test_what_is_both_or_no_image_has_no_order(shape: list[int], strides: list[int]) -> None:
    assert order(shape, strides) is None


def test_transposes_of_an_exported_graph_are_listed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"], name="to_nhwc", perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["y"], ["z"], name="turned", perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["u"], ["v"], name="to_ndhwc", perm=[0, 2, 3, 4, 1]),
        helper.make_node("Transpose", ["v"], ["w"], name="back", perm=[0, 4, 1, 2, 3]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])
    graph = helper.make_graph(nodes, "g", [image], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    found = onnx_changes(tmp_path / "model.onnx")
    assert [(each.name, each.where, each.seconds_per_call) for each in found] == [
        ("Transpose, NCHW → NHWC", "to_nhwc", None),
        ("Transpose, NCDHW → NDHWC", "to_ndhwc", None),
        ("Transpose, NDHWC → NCDHW", "back", None),
    ]
