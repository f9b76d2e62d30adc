"""Windows of one slice of a volume, windows whose taps lie apart, and windows in groups are layers as any other."""

from tests.compiler.rewriting import called, layers, lowered, own_calls, rewritten


def test_a_stride_within_slices_is_taken_at_any_depth() -> None:
    """A norm's sums are the kernel's."""
    made = rewritten("volumes, a stride within slices")
    assert own_calls(lowered(made.net)) == ["conv3x3x3", "conv3x3x3_strided_in_slices"]
    assert made.net.matched["sum_where_made"] == ["2"]


def test_a_window_whose_taps_lie_apart_is_a_layer_as_any_other() -> None:
    made = rewritten("dilated")
    assert own_calls(lowered(made.net)) == [
        "conv_first", "conv1x1", *["conv3x3_dilated"] * 2, "depthwise_dilated", *["conv3x3_dilated"] * 4
    ]  # fmt: skip
    apart = {layer.name: layer.dilation for layer in layers(made.net).values()}
    assert apart == {
        "first": 1,
        "mixed": 1,
        "second.0": 2,
        "normed.0": 4,
        "spread": 4,
        "wide.0": 3,
        "wide.1": 6,
        "wide.2": 36,
        "last.0": 2,
    }
    matched = made.net.matched
    assert [matched[name] for name in ("fold_residual", "sum_where_made", "fold_head")] == [
        ["second.0"], ["normed.0"], ["last.0"]
    ]  # fmt: skip


def test_a_window_in_groups_is_a_layer_as_any_other() -> None:
    """Also with a stride."""
    made = rewritten("grouped")
    calls = own_calls(lowered(made.net))
    assert calls == [
        "conv_first", *["conv3x3_grouped"] * 3, "conv3x3_grouped_strided", "conv1x1", "conv3x3_grouped", "conv_head"
    ]  # fmt: skip
    matched = made.net.matched
    assert matched["take_conv3x3_grouped_strided"] == ["down"]
    assert matched["take_conv3x3_grouped"] == ["narrow.0", "normed.0", "wide", "odd"]
    assert [matched[name] for name in ("fold_residual", "sum_where_made", "pool_where_it_is_made")] == [
        ["narrow.0"], ["normed.0"], ["wide"]
    ]  # fmt: skip


def test_a_window_of_4_that_halves_a_map_is_a_layer_as_any_other() -> None:
    """With the activation or the sums for the norm after it; the first, of three channels, as a window of 5."""
    made = rewritten("pix2pix")
    calls = ["conv_first_strided", *["conv4x4_strided"] * 2, *["transposed4x4"] * 2, "conv_head"]
    assert own_calls(lowered(made.net)) == calls
    assert made.net.matched["centre_windows"] == ["first"]
    assert made.net.matched["take_conv4x4_strided"] == ["second.1", "third.1"]
    assert made.net.matched["sum_where_made"] == ["third.1"]


def test_a_window_of_one_slice_is_one_of_images() -> None:
    """Also beside a window of three slices; the residual and the norms' sums are the kernels'."""
    made = rewritten("volumes of slices far apart")
    graph = lowered(made.net)
    assert own_calls(graph) == [
        "conv1x3x3_first", "conv1x3x3", "conv1x3x3", "conv1x3x3_strided", "conv3x3x3", "upconv1x2x2", "conv1x3x3"
    ]  # fmt: skip
    matched = made.net.matched
    assert matched["volumes_as_images"] == ["first.0", "high.0", "mixed", "down.0", "low.0", "grow", "last.0"]
    assert matched["fold_residual"] == ["mixed"]
    assert matched["sum_where_made"] == ["first.0", "high.0", "down.0", "low.0"]
    assert [called(graph).count(f"aten.{name}.default") for name in ("conv3d", "conv_transpose3d")] == [0, 0]
