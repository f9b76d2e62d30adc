"""What parses YAML once for all tests gives what yaml gives."""

import io

import pytest
import yaml

from tests.yaml_once import once


def test_a_text_is_parsed_once_and_each_caller_has_values_of_his_own() -> None:
    """From a string or a file; for another loader it is parsed again."""
    asked: list[object] = []

    def load(stream: object, loader: type) -> object:
        asked.append(loader)
        return yaml.load(stream, loader)

    loaded = once(load)
    first = loaded("sizes: [1, 2]", yaml.SafeLoader)
    first["sizes"].append(3)
    assert loaded(io.StringIO("sizes: [1, 2]"), yaml.SafeLoader) == {"sizes": [1, 2]}
    loaded("sizes: [1, 2]", yaml.CSafeLoader)
    assert asked == [yaml.SafeLoader, yaml.CSafeLoader]


def test_an_error_names_its_file() -> None:
    """As yaml's own does."""
    broken = io.StringIO("[")
    broken.name = "broken.yaml"
    for _ in range(2):
        with pytest.raises(yaml.YAMLError, match=r"broken\.yaml"):
            once(yaml.load)(broken, yaml.SafeLoader)
