"""A figure beyond its limit, in words that say so: rounded alike, 0.0304 would be 0.03 where 0.03 is allowed."""

MOST_DIGITS = 9


def beyond(value: float, limit: float, digits: int) -> str:
    """A figure with so many digits, or as many more as tell it from its limit."""
    while digits < MOST_DIGITS and value != limit and float(f"{value:.{digits}g}") == float(f"{limit:g}"):
        digits += 1
    return f"{value:.{digits}g}"
