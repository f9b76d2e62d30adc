"""Inputs that move on between samples: no buffer holds what it held, and nothing is lost."""

import torch

from pipeline.measure.rotation import Rotation


def rotation(count: int) -> tuple[Rotation, list[torch.Tensor]]:
    buffers = [torch.full((1, 1, 2, 2), float(index)) for index in range(count)]
    return Rotation(buffers), buffers


def test_the_buffers_are_called_in_turn() -> None:
    turns, buffers = rotation(3)
    assert [turns.next() is buffers[index % 3] for index in range(7)] == [True] * 7


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
        assert [float(turns.holding(index)[0, 0, 0, 0]) for index in range(4)] == [0.0, 1.0, 2.0, 3.0]
