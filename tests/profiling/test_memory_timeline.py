"""The allocator's statistics through one call, and how the time grows with the images' pixels."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.batch import batched
from pipeline.profiling import memory_timeline as timeline
from pipeline.profiling.collect import Explained, image_growth
from pipeline.profiling.memory_timeline import Change, HistoryError, memory_timeline
from pipeline.records.diagnostics import ImageGrowth, MemoryHolder, Note
from pipeline.stages import Runner
from tests.fake_machine import FakeClock

WORKSPACE = 1000
IMAGE = torch.zeros(1, 1, 10, 10)
# Of a call that takes 400 bytes, frees 100 from before it, takes 600 and gives 400 back.
ENTRIES: list[dict[str, Any]] = [
    {"action": "segment_alloc", "addr": 64, "size": 2048, "time_us": 5_000_000},
    {"action": "alloc", "addr": 64, "size": 400, "time_us": 5_000_010},
    {"action": "free_requested", "addr": 8, "size": 100, "time_us": 5_000_015},
    {"action": "alloc", "addr": 512, "size": 600, "time_us": 5_000_030},
    {"action": "oom", "device_free": 1, "size": 9999, "time_us": 5_000_031},
    {"action": "free_requested", "addr": 64, "size": 400, "time_us": 5_000_040},
    {"action": "free_completed", "addr": 64, "size": 400, "time_us": 5_000_041},
    {"action": "snapshot", "addr": 0, "size": 0, "time_us": 5_000_050},
]
CHANGES = [(0.0, 400), (5e-6, -100), (2e-5, 600), (3e-5, -400)]


class Ledger(timeline.AllocatorStatistics):
    def __init__(self) -> None:
        self.now = self.most = 50

    def add(self, amount: int) -> None:
        self.now += amount
        self.most = max(self.most, self.now)

    def allocated(self) -> int:  # type: ignore[override]
        return self.now

    def peak(self) -> int:  # type: ignore[override]
        return self.most

    def reset(self) -> None:  # type: ignore[override]
        self.most = self.now


class Layer(nn.Module):
    """Writes four bytes an element, and works in as many more as it is told."""

    def __init__(self, ledger: Ledger, workspace: int) -> None:
        super().__init__()
        self.ledger, self.workspace = ledger, workspace

    def forward(self, image: Tensor) -> Tensor:
        output = image.clone()
        self.ledger.add(4 * image.numel() + self.workspace)
        self.ledger.add(-self.workspace)
        return output


NO_WAY = Note("memory timeline", "failed", "RuntimeError: CUDA says no")


def unwanted(_: Any) -> Any:
    raise RuntimeError("CUDA says no\nand more of it")


def history_of(changes: list[Change]) -> Callable[[Callable[[], object]], list[Change]]:
    def history(call: Callable[[], object]) -> list[Change]:
        call()
        return changes

    return history


recorded, empty = history_of(CHANGES), history_of([])


def test_the_peak_is_split_into_activations_and_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 400 bytes each, the second working in 1000: the peak is 50 + 800 + 1000; no other way is tried."""
    ledger = Ledger()
    net = nn.Sequential(Layer(ledger, 0), Layer(ledger, WORKSPACE))
    stage = explained(monkeypatch, Runner(net, "", module=net), ledger, unwanted)
    found = stage.memory(7)
    assert stage.notes == []
    assert max(found.allocated_bytes) == 50 + 800 + WORKSPACE
    assert (found.held_bytes, found.activations_bytes, found.workspace_bytes) == (50, 800, WORKSPACE)
    assert found.context_bytes == 7
    assert found.seconds == sorted(found.seconds)
    assert (found.peak_layer, found.holders_left_out) == ("1", 0)
    assert found.holders == [MemoryHolder(["0"], 400), MemoryHolder(["1"], 400)]
    assert (found.call, found.watched) == ("own", "layers")


def test_every_block_is_kept_with_all_layers_that_wrote_it() -> None:
    ledger, held = Ledger(), list[Tensor]()
    layers = {"grow, then": Layer(ledger, 0), "work in place": nn.ReLU(inplace=True)}
    net = nn.Sequential(OrderedDict(layers | {f"{at}": Layer(ledger, 0) for at in range(8)}))
    for layer in net:
        layer.register_forward_hook(lambda _, __, output: held.append(output))
    found = memory_timeline(Runner(net, "", module=net), IMAGE, ledger, None, unwanted)
    assert [block.layers for block in found.holders] == [list(layers), *([f"{at}"] for at in range(8))]
    assert (found.peak_layer, found.holders_left_out) == ("7", 0)


def test_a_stage_that_hides_its_layers_has_a_peak_alone() -> None:
    ledger = Ledger()
    hidden = Layer(ledger, WORKSPACE)
    found = memory_timeline(Runner(hidden, ""), IMAGE, ledger, None)
    assert max(found.allocated_bytes) == 50 + 400 + WORKSPACE
    assert (found.workspace_bytes, found.weights_bytes) == (None, None)
    assert found.activations_bytes == 400 + WORKSPACE
    assert (found.call, found.watched, found.peak_layer) == ("own", "ends", None)


def test_a_stage_that_replays_is_watched_through_its_uncaptured_form() -> None:
    ledger = Ledger()
    net = nn.Sequential(Layer(ledger, 0), Layer(ledger, WORKSPACE), nn.BatchNorm2d(1).eval())
    calls: list[Tensor] = []

    def launched(image: Tensor) -> Tensor:
        calls.append(image)
        ledger.add(30 if len(calls) == 1 else 0)
        logits: Tensor = net(image)
        ledger.add(-800)
        return logits

    found = memory_timeline(Runner(unwanted, "", module=net, uncaptured=launched), IMAGE, ledger, None, unwanted)
    assert (found.held_bytes, found.activations_bytes, found.workspace_bytes) == (80, 800, WORKSPACE)
    assert max(found.allocated_bytes) == 80 + 800 + WORKSPACE
    assert (found.allocated_bytes[0], found.allocated_bytes[-1]) == (80, 80)
    assert found.weights_bytes == 4 * 4 + 8  # the norm's two weights and two buffers in fp32, and its int64 counter
    assert len(calls) == 2
    assert (found.call, found.watched) == ("uncaptured", "layers")


def test_an_uncaptured_form_without_layers_is_watched_by_the_history() -> None:
    ledger, made = Ledger(), []

    def launched(image: Tensor) -> Tensor:
        made.append("call")
        ledger.add(900)
        ledger.add(-900)
        return image

    def history(call: Callable[[], object]) -> list[Change]:
        made.append("history")
        return recorded(call)

    found = memory_timeline(Runner(unwanted, "", uncaptured=launched), IMAGE, ledger, None, history)
    assert made == ["call", "history", "call"]
    assert (found.held_bytes, found.activations_bytes, found.workspace_bytes) == (50, 900, None)
    assert (found.call, found.watched) == ("uncaptured", "allocations")


def test_the_history_is_drawn_as_steps_from_what_is_held() -> None:
    ledger = Ledger()
    hidden = Layer(ledger, 512)
    found = memory_timeline(Runner(hidden, ""), IMAGE, ledger, None, recorded)
    assert found.allocated_bytes == [50, 50, 450, 450, 350, 350, 950, 950, 550]
    assert found.seconds == [0.0, 0.0, 0.0, 5e-6, 5e-6, 2e-5, 2e-5, 3e-5, 3e-5]
    assert found.activations_bytes == 400 + 512
    assert (found.call, found.watched) == ("own", "allocations")


def test_a_history_that_holds_nothing_is_right_where_the_call_allocates_nothing() -> None:
    ledger = Ledger()
    found = memory_timeline(Runner(lambda image: image, ""), IMAGE, ledger, None, empty)
    assert (found.allocated_bytes, found.activations_bytes) == ([50, 50, 50], 0)
    assert found.watched == "nothing allocated"
    with pytest.raises(HistoryError, match="empty, though the call allocates 1400 bytes"):
        memory_timeline(Runner(Layer(ledger, WORKSPACE), ""), IMAGE, ledger, None, empty)


def test_of_a_history_what_changes_the_statistics_counts() -> None:
    found = timeline.changes_in(ENTRIES)
    assert [amount for _, amount in found] == [amount for _, amount in CHANGES]
    assert [moment for moment, _ in found] == pytest.approx([moment for moment, _ in CHANGES])
    assert timeline.changes_in(ENTRIES[:1]) == []


def on_torch(monkeypatch: pytest.MonkeyPatch, entries: list[dict[str, Any]]) -> Mock:
    memory = Mock(**{"_snapshot.return_value": {"device_traces": [[], entries]}})
    monkeypatch.setattr(torch.cuda, "memory", memory)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return memory


def test_the_history_is_kept_for_one_call_of_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = on_torch(monkeypatch, ENTRIES)
    found = timeline.cuda_history(memory.watched)
    assert len(found) == len(CHANGES)
    on = call._record_memory_history(enabled="all", context=None, max_entries=timeline.MOST_ENTRIES)
    off = call._record_memory_history(enabled=None)
    assert memory.mock_calls == [on, call.watched(), call._snapshot(), off]
    with pytest.raises(RuntimeError):
        timeline.cuda_history(lambda: unwanted(IMAGE))
    assert memory.mock_calls[-1] == off


def test_a_history_that_overflows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_torch(monkeypatch, ENTRIES[1:2] * timeline.MOST_ENTRIES)
    with pytest.raises(HistoryError, match="10000 entries"):
        timeline.cuda_history(lambda: None)


def explained(monkeypatch: pytest.MonkeyPatch, runner: Runner, ledger: Ledger, history: Any) -> Explained:
    """A stage on a GPU that isn't there, with these statistics and this history."""
    monkeypatch.setattr(timeline, "AllocatorStatistics", lambda: ledger)
    monkeypatch.setattr(timeline, "cuda_history", history)
    on_gpu: Any = SimpleNamespace(is_cuda=True, clone=IMAGE.clone, numel=IMAGE.numel)
    return Explained(runner, nn.Identity(), [on_gpu], Path())


@pytest.mark.parametrize(("uncaptured", "notes"), [(None, [NO_WAY]), (unwanted, [NO_WAY, NO_WAY])])
def test_where_every_way_fails_the_statistics_alone_are_read(
    uncaptured: Callable[[Any], Any] | None, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    stage = explained(monkeypatch, Runner(Layer(ledger, WORKSPACE), "", uncaptured=uncaptured), ledger, unwanted)
    found = stage.memory(None)
    assert (found.call, found.watched) == ("own", "ends")
    assert (found.activations_bytes, len(found.seconds)) == (400 + WORKSPACE, 3)
    assert stage.notes == notes


def test_where_the_uncaptured_form_fails_the_stages_own_call_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the graph's pool its kernels may not fit a second time; the timeline doesn't claim to be theirs."""
    ledger = Ledger()
    runner = Runner(lambda image: image, "", module=nn.Identity(), uncaptured=unwanted)
    stage = explained(monkeypatch, runner, ledger, empty)
    found = stage.memory(None)
    assert (found.call, found.weights_bytes, found.activations_bytes) == ("own", None, 0)
    assert found.watched == "nothing allocated"
    assert stage.notes == [NO_WAY]


class Timed(nn.Module):
    """Takes `fixed` seconds and so many more for each pixel of its batch; in every other round twice as long."""

    def __init__(self, watch: FakeClock, fixed: float, per_pixel: float) -> None:
        super().__init__()
        self.watch, self.fixed, self.per_pixel, self.calls = watch, fixed, per_pixel, 0

    def forward(self, batch: Tensor) -> Tensor:
        assert batch.is_contiguous()
        disturbed = 1 + self.calls // 2 % 2
        self.watch.wall += disturbed * (self.fixed + self.per_pixel * batch[:, 0].numel())
        self.calls += 1
        return batch


def grown(batch: Tensor, fixed: float = 3.0, per_pixel: float = 1.0, **fields: object) -> ImageGrowth | None:
    watch = FakeClock()
    net = Timed(watch, fixed, per_pixel)
    stage = Runner(net, "", **{"module": net, **fields})  # type: ignore[arg-type]
    return image_growth(stage.of_batches, batched(batch), watch)


def test_a_quarter_and_the_whole_are_timed_in_as_many_calls_as_are_short() -> None:
    found = grown(torch.zeros(2, 3, 4, 6))
    assert found.pixels == [6, 24]
    assert found.seconds == [pytest.approx(3 + 12), pytest.approx(3 + 48)]
    watch = FakeClock()
    net = Timed(watch, 3e-6, 0.0)
    image_growth(Runner(net, "", module=net).of_batches, batched(torch.zeros(1, 3, 4, 4)), watch)
    assert watch.wall == pytest.approx(0.2, rel=0.01)
    assert net.calls > 10_000


def test_what_cannot_be_halved_has_none_or_says_so() -> None:
    even = torch.zeros(1, 3, 4, 4)
    assert grown(torch.zeros(1, 3, 5, 4)) is None
    assert grown(torch.zeros(1, 3, 4, 5)) is None
    assert grown(even, uncaptured=torch.relu) is None
    assert grown(even, module=None) is None
    net = nn.Conv2d(3, 3, 3)
    with pytest.raises(RuntimeError, match="size"):
        image_growth(Runner(net, "", module=net).of_batches, batched(torch.zeros(1, 3, 4, 4)), FakeClock())
