"""Names beside points: each touches its point, or a line leads there; points that lie together share one label."""

from typing import TYPE_CHECKING

from pipeline.report.charts.canvas import INK, LETTER_POINTS, QUIET, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOGETHER = 9.0  # points of 1/72 inch between dots that share a label
BESIDE = 9.0  # from a dot's centre to its name
LINE = 12.0  # high
NAMES_IN_A_LINE = 3
Point = tuple[str, float, float]  # name, and where it is, in data or in points of 1/72 inch


def name_points(figure: "Figure", axes: "Axes", points: list[Point]) -> None:
    """A name beside every point, moved until it covers no other name and no dot."""
    figure.draw_without_rendering()  # only then do data have places
    scale = 72 / figure.dpi
    places: list[Point] = []
    for name, x, y in points:
        across, up = axes.transData.transform((x, y)) * scale
        places.append((name, float(across), float(up)))
    data = {place[1:]: point[1:] for place, point in zip(places, points, strict=True)}
    box = axes.get_window_extent()
    room = (box.x1 * scale, box.y0 * scale, box.y1 * scale)
    taken = [(x - 5, x + 5, y) for _, x, y in places]
    for label, x, y in sorted(merged(places), key=lambda place: -place[2]):
        left, height = _free(label, (x, y), taken, room)
        taken.append((left, left + LETTER_POINTS * len(label), height))
        leads = {
            "arrowstyle": "-",
            "color": QUIET,
            "linewidth": 0.8,
            "shrinkA": 0,
            "shrinkB": 3,
            "relpos": (float(left < x), 0.5),
        }
        axes.annotate(
            label, data[x, y], xytext=(left - x, height - y), textcoords="offset points", va="center", color=INK,
            fontsize=SMALL, arrowprops=leads if abs(height - y) > LINE else None,
        )  # fmt: skip


def merged(places: list[Point]) -> list[Point]:
    """One label for those that lie together: their names, at the first one's place."""
    groups: list[list[Point]] = []
    for place in places:
        near = next((group for group in groups if any(_apart(place, other) < TOGETHER for other in group)), None)
        if near is None:
            groups.append([place])
        else:
            near.append(place)
    return [(_named([name for name, *_ in group]), *group[0][1:]) for group in groups]


def _named(names: list[str]) -> str:
    more = [f"{len(names) - NAMES_IN_A_LINE} more"] if len(names) > NAMES_IN_A_LINE + 1 else []
    return ", ".join([*(names[:NAMES_IN_A_LINE] if more else names), *more])


def _apart(one: Point, other: Point) -> float:
    return float(((one[1] - other[1]) ** 2 + (one[2] - other[2]) ** 2) ** 0.5)


def _free(
    label: str, at: tuple[float, float], taken: list[tuple[float, float, float]], box: tuple[float, float, float]
) -> tuple[float, float]:
    """Where the label's left end and its middle go: right of the dot or left of it, as near as there is room."""
    wide, (across, low, high) = LETTER_POINTS * len(label), box
    sides = [left for left in (at[0] + BESIDE, at[0] - BESIDE - wide) if left >= 0 and left + wide <= across + 40]
    for away in (0, 10, -10, 17, -17, 25, -25, 34, -34, 44, -44, 56, -56):
        height = at[1] + away
        for left in sides if low <= height <= high else []:
            if all(abs(height - y) > LINE - 2 or left + wide < a or left > b for a, b, y in taken):
                return left, height
    return (sides or [at[0] + BESIDE])[0], at[1]
