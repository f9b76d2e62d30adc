"""The labels of the demo: where the immunohistochemistry image is stained brown.

They come from a classical threshold (colour deconvolution after Ruifrok and Johnston, then Otsu), not a pathologist.
A network that reproduces them has learnt a stain, not a diagnosis. NumPy alone: every worker computes them, and
scikit-image's own functions take a second to import.
"""

import numpy as np

UNLABELLED = 255
HELD_OUT = (slice(256, 512), slice(256, 512))  # the quarter at the lower right of 512×512 is never trained on
WORD = "stain mask of scikit-image's immunohistochemistry image by a classical threshold (DAB, Otsu), no pathologist's"
# Darkening of red, green and blue by haematoxylin, eosin and DAB: Ruifrok and Johnston, Anal Quant Cytol Histol 2001.
DARKENS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
LEAST_LIGHT = 1e-6  # of 1; black has no logarithm
BINS = 256


def stain_mask(image: np.ndarray) -> np.ndarray:
    """Return 1 where the DAB channel of an image [height, width, 3], uint8, exceeds Otsu's threshold, else 0."""
    darkness = -np.log(np.maximum(image / 255, LEAST_LIGHT))
    brown = np.maximum(darkness @ np.linalg.inv(DARKENS)[:, 2], 0)
    mask: np.ndarray = (brown > otsu(brown)).astype(np.uint8)
    return mask


def otsu(values: np.ndarray) -> float:
    """Return Otsu's threshold of values of any shape: the middle of the bin that separates two sides best.

    The variance between the sides is (t·m − s)² / (m·(1 − m)), up to a factor: m is the share of the values up to the
    bin, s their part of the sum and t the whole sum (Otsu, IEEE Trans Syst Man Cybern 9, 1979, eq. 18).
    """
    counts, edges = np.histogram(values, BINS)
    middles = (edges[:-1] + edges[1:]) / 2
    share = np.cumsum(counts)[:-1] / counts.sum()
    part = np.cumsum(counts * middles) / counts.sum()
    between = (part[-1] * share - part[:-1]) ** 2 / (share * (1 - share))
    return float(middles[np.argmax(between)])
