"""The cases that a user hands over: a file, a folder with all folders in it, a list of files, or a pattern.

Names are streamed, once to count and to compare them, and again as masks are made. Nothing grows with their number but
a temporary database of paths and names. A case is named by its path, so two files of different folders have two masks.
"""

import glob
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar

from pipeline.config.request_error import RequestError
from pipeline.inputs.folders import Sample, by_channels, is_sample, label_names, stem
from pipeline.inputs.formats import formats_of
from pipeline.inputs.input_contract import LabelRules
from pipeline.predict.cases import Case
from pipeline.predict.mask_files import FILES, PNG, SIDECARS, Form, Statements
from pipeline.predict.shards import WHOLE, Shard
from pipeline.records.data_words import IMAGES, VOLUMES, Words

LIST = ".txt"  # of a file that names others
LONGEST = 255  # bytes of a file's name in Linux
SORTED = 2**18  # entries of a folder that are sorted at a time
MOST_NAMED = 5
Place = TypeVar("Place", str, tuple[str, bool])  # a path, and whether it is a file


@dataclass
class Given:
    """Cases that are listed anew by each iteration."""

    place: Path  # the file, folder, list or pattern
    volumes: bool  # they are volumes instead of images
    nnunet: bool = False  # case_0000.png is the first channel of `case`
    rules: LabelRules | None = None  # of the run's labels, if they lay among its images: such labels are no cases
    left_out: Sequence[str | Path] = ()  # folders that are not entered: of the masks, and of the labels
    shard: Shard = WHOLE  # the share of them that is listed
    form: Form = FILES  # of the masks
    statements: Statements | None = None  # whose sidecars the cases bring along
    others: list[str] = field(default_factory=list)  # the first files that are none
    number_of_others: int = 0  # of all that are none
    # The share's cases, counted: to sort and hash again takes 20 µs a name, for which a GPU would wait.
    listed: sqlite3.Connection | None = None

    @property
    def words(self) -> Words:
        """Nouns for the cases."""
        return VOLUMES if self.volumes else IMAGES

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files that are read."""
        return tuple(sorted(formats_of(self.volumes)))

    @cached_property
    def is_list(self) -> bool:
        """The place is a file that names others."""
        return self.place.suffix.lower() == LIST and self.place.is_file()

    @cached_property
    def root(self) -> str:
        """The folder from which cases are named; a file that isn't in it is named by its whole path."""
        if self.place.is_dir():
            return whole(str(self.place))
        if self.is_list:
            return str(Path.cwd())
        parts = self.place.parts[:-1]
        fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        return whole(str(Path(*(parts if self.place.exists() else parts[:fixed]))))

    def __iter__(self) -> Iterator[Case]:
        """Yield the cases of the share."""
        for sample in self.samples():
            if self.listed is not None or self.shard.has(sample.name):
                first = sample.files[0]
                suffix = self.form.suffix(first, self.volumes) if self.is_read(first.name) else PNG
                sidecars = self.statements.about(sample.name + suffix) if self.statements else ()
                fits = len(os.fsencode((sample.name + suffix).rpartition(os.sep)[2])) <= LONGEST
                problem = "" if fits else f"the mask's name, with {suffix}, exceeds {LONGEST} bytes; rename {first}"
                yield Case(sample.name, sample.files, sample.problem or problem, suffix, self.volumes, sidecars)

    def __len__(self) -> int:
        """Return the number of cases of the share."""
        return self.number

    @cached_property
    def number(self) -> int:
        """Number of cases of the share, which are compared, too: no two may have one mask."""
        self.others, self.number_of_others = [], 0
        share = sqlite3.connect("", check_same_thread=False)  # of a temporary file
        weakref.finalize(self, share.close)
        try:
            share.execute("CREATE TABLE cases (path BLOB, name BLOB)")
            share.executemany("INSERT INTO cases VALUES (?, ?)", self.rows())
            number: int = share.execute("SELECT count(*) FROM cases").fetchone()[0]
            twice = share.execute("SELECT name FROM cases GROUP BY name HAVING count(*) > 1 LIMIT 1").fetchone()
        except sqlite3.Error as error:
            problem = f"{tempfile.gettempdir()}: the names can't be kept there: {error}"
            raise RequestError(f"{problem}; TMPDIR names another folder") from error
        if twice:
            alike = [*islice((each for each in self.samples() if each.name == os.fsdecode(twice[0])), 2)]
            names = ", ".join(file.name for each in alike for file in each.files)
            mask = alike[0].name + self.form.suffix(alike[0].files[0], self.volumes)
            raise RequestError(f"{self.place}: {names} would share the mask {mask}; give each a name of its own")
        self.listed = None if self.in_groups else share
        return number

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield path and name of each case of the share; raise if no share has a case."""
        any_at_all = False
        for path, name in self.names():
            any_at_all = True
            if self.shard.has(name):
                yield os.fsencode(path), os.fsencode(name)
        if not any_at_all:
            raise RequestError(f"{self.place}: no {self.words.sample} in it; {', '.join(self.suffixes)} are read")

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield a path and the name of all cases."""
        if self.in_groups:
            return ((str(sample.files[0]), sample.name) for sample in self.samples())
        return ((path, self.name_of(path)) for path in self.paths())

    @property
    def in_groups(self) -> bool:
        """A case depends on the other files of its folder."""
        return self.nnunet or self.rules is not None

    def samples(self) -> Iterator[Sample]:
        """Yield all cases as their files alone."""
        if self.in_groups:
            paths = self.paths() if self.place.is_dir() else sorted(self.paths(), key=os.path.split)
            for _, group in groupby(paths, os.path.dirname):
                yield from self.of_folder([*map(Path, group)])
            return
        pairs = self.names()
        if self.listed:
            rows = self.listed.execute("SELECT path, name FROM cases ORDER BY rowid")
            pairs = ((os.fsdecode(path), os.fsdecode(name)) for path, name in rows)
        for path, name in pairs:
            problem = f"{path}: no {self.words.sample}; {', '.join(self.suffixes)} are read"
            yield Sample(name, (Path(path),), "" if self.is_read(path) else problem)

    def of_folder(self, files: list[Path]) -> Iterator[Sample]:
        """Yield the cases among the files of one folder."""
        if self.rules is not None:
            labels = {
                name for file in files for name in label_names(file, stem(file, self.volumes), self.rules, self.volumes)
            }
            for name in labels & {file.name for file in files}:
                self.leave_out(name)
            files = [file for file in files if file.name not in labels]
        one_each = (Sample(stem(file, self.volumes), (file,)) for file in files)
        for sample in by_channels(files, self.volumes) if self.nnunet else one_each:
            yield Sample(self.named(str(sample.files[0].parent / sample.name)), sample.files, sample.problem)

    def is_read(self, path: str) -> bool:
        """Return whether a file's name has the suffix of a format."""
        return path.lower().endswith(self.suffixes)

    def name_of(self, path: str) -> str:
        """Return the name of the case of one file."""
        return self.named(path[: len(path) - len(formats_of(self.volumes).suffix(path))])

    def named(self, path: str) -> str:
        """Return a path as seen from the root, or the whole path without its first slash if it lies elsewhere."""
        full = whole(path) + os.sep * path.endswith(os.sep)  # the end of a file that is nothing but a suffix
        within = self.root.rstrip(os.sep) + os.sep
        return full.removeprefix(within) if full.startswith(within) else full.lstrip(os.sep)

    def leave_out(self, name: str) -> None:
        """Count a file that is no case, and keep the names of the first."""
        self.number_of_others += 1
        if len(self.others) < MOST_NAMED:
            self.others.append(name)

    def paths(self) -> Iterator[str]:
        """Yield the files; of a list also those that can't be read, as it names them."""
        if self.place.is_dir():
            yield from self.within(str(self.place), ())
        elif self.is_list:
            with self.place.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
                yield from (line for raw in lines if (line := raw.rstrip("\r\n")).strip())
        elif self.place.exists() or glob.has_magic(str(self.place)):
            one = glob.escape(str(self.place)) if self.place.exists() else str(self.place)
            found = glob.iglob(one, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            yield from (path for path in in_order(found) if self.is_taken(path))
        else:
            raise RequestError(f"{self.place}: no such folder of {self.words.samples}, nor a file, a list or a pattern")

    def is_taken(self, path: str, is_file: bool = False) -> bool:
        """Return whether an entry is an image or a volume; count it if it isn't, unless it is a folder."""
        if (is_file and not self.volumes and self.is_read(path)) or is_sample(Path(path), self.volumes):
            return True  # a `Path` and its stat take 15 µs
        if self.is_read(path) or not Path(path).is_dir():
            self.leave_out(os.path.relpath(path, self.root))
        return False

    def within(self, folder: str, above: tuple[str, ...]) -> Iterator[str]:
        """Yield the files of a folder, then those of the folders in it but hidden ones and those of masks."""
        real = os.path.realpath(folder)
        closed = real in map(os.path.realpath, self.left_out) or Path(folder, SIDECARS).is_dir()
        if real in above or (above and closed):
            self.leave_out(os.path.relpath(folder, self.root))
            return
        folders = []
        with os.scandir(folder) as entries:
            seen = (entry for entry in entries if not entry.name.startswith("."))
            for path, is_file in in_order((entry.path, entry.is_file(follow_symlinks=False)) for entry in seen):
                if self.is_taken(path, is_file):
                    yield path
                elif not self.is_read(path) and Path(path).is_dir():
                    folders.append(path)
        for path in folders:
            yield from self.within(path, (*above, real))


def whole(path: str) -> str:
    """Return an absolute path without `..`, whose links stay."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve() follows links


def in_order(paths: Iterable[Place]) -> Iterator[Place]:
    """Yield paths in order; of very many, one part after the other."""
    left = iter(paths)
    while part := sorted(islice(left, SORTED)):
        yield from part
