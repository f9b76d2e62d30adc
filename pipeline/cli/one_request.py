"""The program as one sentence: read the request, run it, report, and leave with what came of it."""

import math

import hydra
from omegaconf import DictConfig

from pipeline.cli import app
from pipeline.cli.composed_once import composed_once


@composed_once
@hydra.main(version_base="1.3", config_path=str(app.CONF), config_name="config")
def answer(config: DictConfig) -> float:
    """Answer one request, or one job of a sweep; what a sweeper that searches is to make small."""
    with app.job(config) as invocation:
        request = app.read(config, invocation)
        record = app.run(request, invocation)
        return app.report(record, invocation)
    return math.inf
