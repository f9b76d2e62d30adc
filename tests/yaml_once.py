"""YAML that is parsed once: each request composes some twenty files, and yaml parses them in Python."""

import pickle
from collections.abc import Callable
from io import IOBase
from typing import Any

Load = Callable[..., Any]


def once(load: Load) -> Load:
    """`yaml.load` that answers for a text that it has parsed before; what it gives may be changed."""
    known: dict[tuple[object, str], bytes] = {}

    def loaded(stream: Any, Loader: type) -> Any:  # noqa: N803 - yaml's own name
        text = stream
        if isinstance(stream, IOBase):
            text = stream.read()
            stream.seek(0)  # an error names the file
        key = text, Loader.__qualname__
        if key not in known:
            known[key] = pickle.dumps(load(stream, Loader))
        return pickle.loads(known[key])

    return loaded
