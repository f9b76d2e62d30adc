"""The program as one sentence: read the question, run it, report, and leave with what came of it."""

import sys

import hydra
from omegaconf import DictConfig

from pipeline import front


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def answer(config: DictConfig) -> None:
    """Answer one question, or one job of a sweep."""
    with front.job(config) as job:
        question = front.read(config, job)
        record = front.run(question, job)
        front.report(record, job)


def main() -> None:
    """The console script."""
    sys.exit(front.guard(answer))


if __name__ == "__main__":
    main()
