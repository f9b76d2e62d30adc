"""How high the strips are down which a program walks, row by row, while an input row serves three output rows."""

STRIPS = (64, 16, 40, 88, 112, 136)  # rows: of whole blocks of the statistics, and two less than a multiple of 3


def evenest(batch: int, height: int, width: int, at_once: int) -> list[int]:
    """The two heights of strips, 64 pixels wide, that share a batch of maps most evenly among programs `at_once`.

    Each program takes as long as the one with the most strips, and a strip two rows more than it has, and its start.
    """
    columns = batch * -(-width // 64)
    return sorted(STRIPS, key=lambda rows: -(-(columns * -(-height // rows)) // at_once) * (rows + 4))[:2]
