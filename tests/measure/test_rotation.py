"""Inputs that move on between samples: no buffer holds what it held, and nothing is lost."""

import pytest
import torch

from pipeline.measure.rotation import Rotation, fingerprint, is_same


def rotation(count: int) -> tuple[Rotation, list[torch.Tensor]]:
    buffers = [torch.full((1, 1, 2, 2), float(index)) for index in range(count)]
    return Rotation(buffers), buffers


def test_the_buffers_are_called_in_turn() -> None:
    turns, buffers = rotation(3)
    assert [turns.next().first is buffers[index % 3] for index in range(7)] == [True] * 7


def test_every_buffer_holds_another_picture_after_each_move() -> None:
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


def test_a_picture_that_was_changed_is_named_wherever_it_lies() -> None:
    """By a single bit, too, and by two values that change places; moving on changes nothing."""
    turns, buffers = rotation(3)
    turns.move_on()
    assert turns.changed() == []
    buffers[0][0, 0, 1, 1] += 1e-6
    assert turns.changed() == [1]


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
