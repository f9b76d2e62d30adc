"""The files that every worker reads anew: weights, images and this program itself, which may change while a run lasts.

A stage that writes into the weights would have the next one called wrong, and one that writes into this program have it
measured by another. So may whoever trains on, or edits a checkout, meanwhile.
"""

from collections.abc import Iterable
from pathlib import Path

from pipeline.config.data_request import TENSORS
from pipeline.config.request_error import RequestError
from pipeline.inputs import weights_file
from pipeline.records.content_digest import PACKAGE, code_digest, data_digest, file_digest, files_in
from pipeline.records.file_mark import FileMark, mark_of
from pipeline.records.request import RunConfig
from pipeline.records.run_record import RunRecord, RunWarning

MOST_FILES = 10_000  # of a folder that are looked at
Marks = dict[Path, FileMark | None]


class RestingFiles:
    """What the files were when the run began: by their marks, and where one has changed by the record's digests."""

    def __init__(self, config: RunConfig) -> None:
        self._weights = config.model.weights
        self._data = [config.data.path, None if config.data.name == TENSORS else config.data.labels]
        self._of_weights = marks([weights_file.find(self._weights)] if self._weights else [])
        self._of_data = marks(path for place in self._data if place for path in files_of(Path(place)))
        self._of_sources = marks(sources())

    def at_rest(self) -> bool:
        """Whether nothing was written over so far, not even by the same."""
        return not any(map(first_changed, (self._of_weights, self._of_data, self._of_sources)))

    def check_inputs(self, record: RunRecord) -> None:
        """That weights and images are what they were: no later stage could be compared with an earlier one.

        Raises:
            RequestError: one isn't; the line names it.
        """
        try:
            found = self._changed_weights(record) or self._changed_data(record)
        except OSError as error:
            found = Path(error.filename or "a file of the run")
        if found:
            raise RequestError(
                f"{found}: it was written over while the run was on its way; put back what it was, and go on with "
                "resume=, or measure all again"
            )

    def _changed_weights(self, record: RunRecord) -> Path | None:
        changed = first_changed(self._of_weights)
        if changed is None or record.reference is None:
            return None
        return changed if file_digest(changed) != record.reference.weights_sha256 else None

    def _changed_data(self, record: RunRecord) -> Path | None:
        changed = first_changed(self._of_data)
        return changed if changed and data_digest(self._data) != record.data_sha256 else None

    def changed_source(self, record: RunRecord) -> RunWarning | None:
        """A warning that names a file of this program that isn't what it was; once for each change."""
        changed = first_changed(self._of_sources)
        self._of_sources = marks(self._of_sources)
        if changed is None or code_digest.__wrapped__() == record.code_sha256:
            return None
        text = f"{changed}: this program's own file was written over while the run was on its way"
        return RunWarning("files changed", text, "what was measured from then on ran other code: measure it again")


def files_of(place: Path) -> list[Path]:
    """A file, or those of a folder, as many as are looked at; none where there is nothing."""
    if place.is_dir():
        return [path for _, path in files_in(place)[:MOST_FILES]]
    return [place] if place.exists() else []


def sources() -> list[Path]:
    """This program's own modules."""
    return [path for folder in (PACKAGE, PACKAGE.parent / "models") for _, path in files_in(folder, "*.py")]


def marks(paths: Iterable[Path]) -> Marks:
    """Of each file what changes with every writing of it."""
    return {path: mark_of(path) for path in paths}


def first_changed(before: Marks) -> Path | None:
    """The first file that was written, touched, linked to or removed since."""
    return next((path for path, mark in before.items() if mark_of(path) != mark), None)
