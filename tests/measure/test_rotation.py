"""Inputs that move on between samples: no buffer holds what it held, and nothing is lost."""

import pytest
import torch

from pipeline.measure.fingerprint import fingerprint, is_same
from pipeline.measure.rotation import Rotation


def rotation(count: int) -> tuple[Rotation, list[torch.Tensor]]:
    buffers = [torch.full((1, 1, 2, 2), float(index)) for index in range(count)]
    return Rotation(buffers), buffers


def test_the_buffers_are_called_in_turn() -> None:
    turns, buffers = rotation(3)
    assert [turns.next().first is buffers[index % 3] for index in range(7)] == [True] * 7


def test_every_buffer_holds_another_picture_after_each_move() -> None:
    """And after as many moves as there are buffers, what it held at first."""
    _, first = rotation(3)
    turns, buffers = rotation(3)
    held = [[float(buffer[0, 0, 0, 0]) for buffer in buffers]]
    for _ in range(3):
        turns.move_on()
        held.append([float(buffer[0, 0, 0, 0]) for buffer in buffers])
    assert held == [[0.0, 1.0, 2.0], [1.0, 2.0, 0.0], [2.0, 0.0, 1.0], [0.0, 1.0, 2.0]]
    assert all(torch.equal(one, other) for one, other in zip(first, buffers, strict=True))


def test_a_picture_is_found_wherever_it_lies() -> None:
    turns, _ = rotation(4)
    for _ in range(6):
        turns.move_on()
        assert [float(turns.holding(index).first[0, 0, 0, 0]) for index in range(4)] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("moves", [0, 1, 5])
def test_a_sample_ends_on_the_picture_that_was_asked_for(moves: int) -> None:
    """Wherever it lies, and however many calls come before."""
    turns, _ = rotation(4)
    for _ in range(moves):
        turns.move_on()
    for picture in range(4):
        turns.end_on(picture, 7)
        *_, last = [turns.next() for _ in range(7)]
        assert float(last.first[0, 0, 0, 0]) == picture
        assert turns.picture_in(last) == picture


def test_a_picture_that_was_changed_is_named_wherever_it_lies() -> None:
    """By a single bit, too, and by two values that change places; moving on changes nothing."""
    turns, buffers = rotation(3)
    turns.move_on()
    assert turns.changed() == []
    buffers[0][0, 0, 1, 1] += 1e-6
    assert turns.changed() == [1]


def test_rolled_back_everything_is_as_before() -> None:
    buffers = [torch.arange(24.0).reshape(1, 1, 6, 4) + index for index in range(2)]
    turns = Rotation(buffers)
    turns.roll(2)
    assert float(buffers[0][0, 0, 2, 0]) == 0.0
    assert turns.changed() == [0, 1]
    turns.roll(0)
    turns.roll(4)
    assert turns.changed() == []


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_a_fingerprint_sees_two_values_that_change_places(kind: torch.dtype) -> None:
    values = (torch.arange(12).reshape(3, 4) % 2).to(kind)
    before = fingerprint(values)
    assert is_same(before, values.clone())
    values[0, 0], values[0, 1] = values[0, 1].clone(), values[0, 0].clone()
    assert not is_same(before, values)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_number_has_a_fingerprint_of_both_its_parts(dtype: torch.dtype) -> None:
    values = torch.ones(2, 3, dtype=dtype)
    known = fingerprint(values)
    assert is_same(known, values)
    for change in (1e-6, 1e-6j):
        assert not is_same(known, values + change * torch.eye(2, 3))
