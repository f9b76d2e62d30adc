"""Nets that nobody wrote keep their answers: a few of those that `python -m tests.random_nets` draws."""

import pytest

from tests.random_nets.trial import tried

SEEDS = (3, 20006, 40217)  # of images with one input and of two, and of volumes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_net_keeps_its_answer(seed: int) -> None:
    trial = tried(seed, whole=True)
    assert not trial.failures, trial.raised or trial.draw.chosen
    assert trial.layers > 0
