"""The program as one sentence: read the request, run it, report, and leave with what came of it."""

import math
import sys

from pipeline.orchestrate import importing
from pipeline.orchestrate.forking import start_ahead, stop_ahead

if __name__ == "__main__":  # before the imports that take long, so that the first worker's take theirs beside them
    importing.begin()
    start_ahead(sys.argv[1:])

import hydra
from omegaconf import DictConfig

from pipeline.cli import app
from pipeline.cli.composed_once import composed_once


@composed_once
@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def answer(config: DictConfig) -> float:
    """Answer one request, or one job of a sweep; what a sweeper that searches is to make small."""
    with app.job(config) as invocation:
        request = app.read(config, invocation)
        record = app.run(request, invocation)
        return app.report(record, invocation)
    return math.inf


def main() -> None:
    """The console script."""
    start_ahead(sys.argv[1:])
    try:
        code = app.guard(answer)
    finally:
        stop_ahead()
    sys.exit(code)


if __name__ == "__main__":
    importing.end()
    main()
