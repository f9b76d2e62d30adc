"""The pictures of an audit are the same in every process, and gone afterwards."""

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.measure.rotation import Rotation
from pipeline.protocol import Audit
from pipeline.worker import audited_calls

SHAPE, ANSWER = (2, 3, 8, 8), (2, 2, 8, 8)


def pictures(count: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(SHAPE, generator=draw) for _ in range(count)]


def net(batch: Batch) -> Tensor:
    return torch.stack([batch.first.sin().sum(1), batch.first.cos().sum(1)], 1)


def test_two_workers_answer_alike_wherever_their_pictures_lie() -> None:
    """One of them has moved on; another seed gives other answers, and each call another one."""
    here, there = Rotation(pictures()), Rotation(pictures())
    there.move_on()
    asked = Audit(7, calls=5)
    given = audited_calls.values(net, here, ANSWER, asked)
    assert given == audited_calls.values(net, there, ANSWER, asked)
    assert len({tuple(call) for call in given}) == 5
    assert given != audited_calls.values(net, here, ANSWER, Audit(8, calls=5))


def test_the_pictures_are_afterwards_what_they_were() -> None:
    """Also where there is only one."""
    for count in (1, 3):
        rotation = Rotation(pictures(count))
        audited_calls.values(net, rotation, ANSWER, Audit(7, calls=4))
        assert rotation.changed() == []


def test_a_blank_audit_calls_nothing() -> None:
    """It tells how long all the rest takes."""
    given = audited_calls.values(fails, Rotation(pictures()), ANSWER, Audit(7, 2, blank=True))
    assert {value for call in given for value in call} == {0.0}


def fails(_: Batch) -> Tensor:
    raise AssertionError("called")


def test_every_image_of_the_batch_is_looked_at() -> None:
    """And no more numbers are given than a message carries at no cost."""
    few = audited_calls.values(lambda batch: batch.first[:, :2], Rotation(pictures()), ANSWER, Audit(7, calls=2))
    assert len(few[0]) == 2 * 2 * audited_calls.MOST_PLACES
    wide = Rotation(pictures())
    many = audited_calls.values(
        lambda batch: batch.first[:, :1].expand(-1, 600, -1, -1), wide, (2, 600, 8, 8), Audit(7, calls=2)
    )
    assert len(many[0]) == 2 * 600 * 6


def test_answers_and_inputs_of_any_number_of_dimensions_are_taken() -> None:
    """Volumes, and an answer without places: a number for each class; whole numbers are exchanged, not mixed."""
    volumes = Rotation([torch.rand(1, 1, 4, 6, 5) for _ in range(3)])
    given = audited_calls.values(lambda batch: batch.first, volumes, (1, 1, 4, 6, 5), Audit(7, calls=2))
    assert [len(call) for call in given] == [audited_calls.MOST_PLACES] * 2
    tokens = Rotation([torch.full((2, 5), number) for number in range(3)])
    given = audited_calls.values(lambda batch: batch.first[:, :3], tokens, (2, 3), Audit(7, calls=2))
    assert {value for call in given for value in call} <= {1.0, 2.0}
    assert tokens.changed() == []
