"""What a guard is: where it stands, and the test that must fail without it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        what: it keeps out, in a few words.
        file: that holds it.
        code: of the guard, as it stands there once.
        instead: what stands there without it.
        test: that must then fail, as pytest names it.
    """

    what: str
    file: str
    code: str
    instead: str
    test: str
