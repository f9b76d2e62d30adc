"""What Inductor makes of a lowered graph: the kernels' operations as they stand, and no copy at a concatenation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from pipeline.compiler.inductor import compile_counting_bytes
from pipeline.stages.common.inductor import own_cache
from tests.compiler import rewriting
from tests.compiler.further_nets import NewestFirst, NewestLast, Shared
from tests.compiler.nets import classic, image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import lowered, own_calls, rewritten_from
from tests.process_state import own_switches

pytestmark = pytest.mark.slow

BATCH = image(1, 3, 16, 16)
WIDE = "(1, 32, 16, 16)"  # what is joined in both nets


def mixed(
    batch: Tensor, first: nn.Module, high: nn.Module, low: nn.Module, joined: nn.Module, head: nn.Module
) -> Tensor:
    value = high(first(batch).relu()).relu()
    small = functional.interpolate(low(functional.max_pool2d(value, 2)), scale_factor=2, mode="nearest")
    return head(joined(torch.cat([functional.relu6(small), value], dim=1)).relu())


def of_two_parts() -> nn.Module:
    convs = [nn.Conv2d(inner, 16, 3, padding=1) for inner in (3, 16, 16, 32)]
    return Made(mixed, *convs, nn.Conv2d(16, 2, 1))


def read_twice(batch: Tensor, first: nn.Module, one: nn.Module, other: nn.Module) -> Tensor:
    value = functional.relu6(first(batch))
    return other(torch.sigmoid(one(value))) * other(value)


@dataclass(frozen=True)
class Written:
    text: str

    @property
    def own_calls(self) -> int:
        return self.text.count("torch.ops.unet_ladder.")

    @property
    def generated(self) -> list[list[str]]:
        return [call.split(", ") for call in re.findall(r"^        cpp_fused_\w+\((.*)\)$", self.text, re.MULTILINE)]

    @property
    def outputs(self) -> list[int]:
        kernels = re.findall(r"void *kernel\((.*?)\)", self.text, re.DOTALL)
        return [sum("const" not in kind for kind in types.split(",")) for types in kernels]

    @property
    def memory(self) -> list[int]:
        """The channels of each map in fp16 that the program asks memory for, in order."""
        found = re.findall(r"= empty_strided_cpu\(\(\d+, (\d+), \d+, \d+\), \(.*?\), torch\.float16\)", self.text)
        return [int(channels) for channels in found]

    @property
    def wide(self) -> list[str]:
        return re.findall(rf"(\w+) = empty_strided_cpu\({re.escape(WIDE)}", self.text)


@pytest.fixture(autouse=True)
def own_process(tmp_path: Path) -> Iterator[None]:
    """As in a worker: a cold cache; the header that Inductor compiles beforehand is the machine's, and kept."""
    with own_switches():
        own_cache(tmp_path)
        yield
        torch._dynamo.reset()


def graph_of(net: nn.Module, batch: Tensor = BATCH) -> fx.GraphModule:
    torch.manual_seed(0)
    return lowered(rewritten_from(net.eval(), batch, torch.float16))


@torch.inference_mode()
def compiled(graph: fx.GraphModule, batch: Tensor = BATCH) -> tuple[Tensor, Written]:
    run: Any = torch.compile(graph, fullgraph=True)
    answer, programs = run_and_get_code(run, batch)
    assert len(programs) == 1
    return answer, Written(programs[0])


def test_of_the_classic_net_nothing_is_left_to_inductor() -> None:
    graph = graph_of(classic(depth=1))
    answer, program = compiled(graph)
    assert program.own_calls == len(own_calls(graph)) == 6
    assert program.generated == []
    assert "extern_kernels." not in program.text.split("class Runner")[1]
    assert program.wide == []
    assert torch.equal(answer, graph(BATCH))


def test_a_part_of_a_concatenation_is_written_once_where_it_belongs() -> None:
    graph = graph_of(of_two_parts())
    answer, program = compiled(graph)
    assert program.own_calls == len(own_calls(graph)) == 4
    assert len(program.generated) == 1
    assert len(program.wide) == 1
    assert torch.equal(answer, graph(BATCH))
    graph = graph_of(Made(read_twice, *[nn.Conv2d(inner, 16, 3, padding=1) for inner in (3, 16, 16)]))
    answer, program = compiled(graph)
    assert program.own_calls == len(own_calls(graph)) == 4
    assert program.outputs == [1, 1, 1]
    torch.testing.assert_close(answer, graph(BATCH), rtol=1e-2, atol=1e-3)


def test_concatenations_within_each_other_are_one_buffer_without_a_copy() -> None:
    batch = image(2, 3, 9, 13)
    graph = graph_of(NewestFirst(), batch)
    answer, program = compiled(graph, batch)
    assert program.own_calls == len(own_calls(graph)) == 5
    assert program.memory == [64, 16]
    assert program.outputs == [1]
    assert torch.equal(answer, graph(batch))


def test_a_norm_of_concatenated_values_reads_them_where_they_lie() -> None:
    """As DenseNet has it: for each of three concatenations a pass, and the buffer that all are channels of."""
    batch = image(2, 3, 9, 13)
    graph = graph_of(lively(NewestLast()), batch)
    answer, program = compiled(graph, batch)
    assert program.own_calls == len(own_calls(graph)) == 4
    assert sorted(program.memory) == [16, 16, 16, 32, 48, 48]  # before and of the pool, what passes write, the buffer
    assert program.outputs == [3, 1, 1, 1]  # of the pool and the first pass, the other passes, the cast
    with torch.no_grad():
        torch.testing.assert_close(answer, graph(batch), rtol=1e-2, atol=1e-3)


def test_of_a_value_that_two_buffers_want_its_own_channels_are_copied() -> None:
    """In the kernel that up-samples, as Inductor writes that where it belongs, too."""
    graph = graph_of(Shared())
    answer, program = compiled(graph)
    assert program.own_calls == len(own_calls(graph)) == 5
    assert sorted(program.memory) == [16, 16, 16, 16, 16, 32, 48]  # two halves and what is made of each, the logits
    (_, pooled), (_, _, once), (_, again), _ = program.generated
    assert f"{again} = empty_strided_cpu((1, 48, 16, 16)" in program.text
    assert f"{once} = empty_strided_cpu((1, 32, 16, 16)" in program.text
    assert pooled not in (once, again)
    assert torch.equal(answer, graph(BATCH))


def test_inductor_counts_the_bytes_of_the_kernels_operations() -> None:
    graph = graph_of(classic(depth=1))
    with torch.inference_mode():
        run, moved = compile_counting_bytes(graph, BATCH)
        assert moved > 4 * (BATCH.numel() + run(BATCH).numel())


@torch.inference_mode()
def test_a_graph_from_torch_s_cache_computes_with_the_weights_at_hand() -> None:
    """Also one that calls a function of ours; and nothing goes through Dynamo, which would trace it once more."""
    graph = rewriting.lowered(rewriting.rewritten("instance norm").net)
    counters, example = torch._dynamo.utils.counters, rewriting.rewritten("instance norm").batch
    torch._dynamo.reset()
    counters.clear()
    for factor in (1.0, 0.5):
        for part in graph.buffers():
            if part.is_floating_point():
                part.mul_(factor)
        run, _ = compile_counting_bytes(graph, example)
        torch.testing.assert_close(run(example), graph(example), rtol=1e-2, atol=1e-3)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert not counters["stats"]["unique_graphs"]
