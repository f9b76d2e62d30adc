"""Properties of any record."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.records import codec
from pipeline.records.goals import Tolerance
from pipeline.records.masking import masked
from pipeline.records.run_record import RunWarning
from pipeline.records.samples import Accuracy, Block, Energy, Memory, Sample, WarmUp

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FINITE = st.floats(0, 1e9)
TIMES = st.floats(1e-12, 1e6)
SAMPLES = st.builds(Sample, st.integers(1, 10**6), TIMES, st.none() | TIMES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", [Block, Accuracy, Memory, Energy, WarmUp, Tolerance, RunWarning])
def test_what_is_written_is_read_again(kind: type[Any]) -> None:

    @FEW
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        st.register_type_strategy(float, FINITE)
        st.register_type_strategy(int, st.integers(0))
        st.register_type_strategy(Sample, SAMPLES)
        record = data.draw(st.from_type(kind))
        assert codec.from_json(kind, json.loads(json.dumps(codec.to_json(record)))) == record

    holds()


@FEW
@given(JSON)
def test_masking_nothing_changes_nothing(value: Any) -> None:
    assert masked(value, {}) == value


@FEW
@given(JSON, st.text(min_size=1, max_size=3))
def test_no_masked_value_holds_the_secret(value: Any, secret: str) -> None:
    assert secret not in texts(masked(value, {secret: ""}))


def texts(value: Any) -> list[str]:
    """Every text of plain JSON values, keys among them."""
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in (key, *texts(part))]
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []
