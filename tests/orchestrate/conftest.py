"""The worker of a script, for the tests of its processes."""

from tests.orchestrate.script_worker import start  # noqa: F401 - as a fixture
