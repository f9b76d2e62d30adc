"""Labelled images that are drawn: stained tissue with nuclei of three kinds, by split and number.

Nuclei lie in stroma and in nests of epithelium, and cover each other. Tumour nuclei are large, pale and coarse,
lymphocytes round and dark, fibroblasts long and thin; sizes and darkness of the kinds overlap. Vessels, red cells and
pigment belong to the background. Focus, noise, light and stain differ from image to image.

An image has a random stream of its own, by seed, split and number, so no split shares one with another.
"""

import math
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Literal, get_args

import numpy as np

Split = Literal["train", "calibration", "held_out", "timing"]
SPLITS: tuple[Split, ...] = get_args(Split)
SIDE = 256  # of an image, if none is asked for, pixels
CLASSES = ("background", "tumour", "lymphocyte", "fibroblast")
# Absorption of red, green and blue by haematoxylin and eosin: Ruifrok and Johnston, Anal Quant Cytol Histol 2001.
ABSORBS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11]], np.float32)
HALF = 15  # half the side of a nucleus's patch, and the margin in which nuclei begin, pixels
SPACING = 17.0  # of places for nuclei, pixels
TAPS = 4  # grid points that a pixel of a texture is made of, on each axis
SEEN_THROUGH = 0.35  # share of what a nucleus covers
MANY = 1000  # images, whose drawing takes longer than to start a process for each processor

# Low and high of what is drawn uniformly for each nucleus, by its kind, in the order of `CLASSES`.
RANGES = {
    "radius": [(6.0, 11.5), (4.0, 6.6), (6.0, 13.0)],  # the longer half axis, pixels
    "thin": [(0.60, 0.95), (0.75, 1.00), (0.24, 0.52)],  # the shorter half axis over the longer one
    "dark": [(0.50, 1.00), (0.80, 1.40), (0.55, 1.20)],  # amount of haematoxylin
    "grain": [(0.25, 0.50), (0.08, 0.30), (0.10, 0.35)],  # depth of the chromatin's texture, share of "dark"
    "wobble": [(0.08, 0.16), (0.04, 0.10), (0.06, 0.14)],  # of the outline, share of the radius
}
IN_NESTS, IN_STROMA = np.array([0.78, 0.14, 0.08]), np.array([0.12, 0.42, 0.46])  # shares of the kinds


def generated(split: Split, number: int, size: tuple[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw an image [height, width, 3] and its classes [height, width], uint8; the same for the same arguments."""
    random = np.random.default_rng([seed, SPLITS.index(split), number])
    height, width = (side + 2 * HALF for side in size)
    fine, coarse, wide = (texture(random, height, width, length) for length in (2.5, 11.0, 60.0))
    nest = 1 / (1 + np.exp(-8 * (wide + random.uniform(-0.6, 0.6))))
    bundles = np.sin(stripes(random, height, width) + 2.5 * coarse + 4 * wide)
    eosin = 0.42 + 0.05 * fine + (0.12 - 0.08 * nest) * coarse + 0.09 * (1 - nest) * bundles
    stain = np.stack([0.06 + 0.12 * nest + 0.03 * (fine + coarse), eosin])
    # Vessels without stain, red cells and pigment have no class.
    vessel = texture(random, height, width, 34.0) > random.uniform(1.6, 2.6)
    stain[:, vessel] *= 0.12
    for amounts, radius, share in (((0.02, 0.75), 4.2, 1.6e-4), ((0.9, 0.5), 2.2, 1.2e-4)):
        count = random.poisson(share * height * width)
        places = random.integers(HALF, (height - HALF, width - HALF), (count, 2))
        radii = radius * random.uniform(0.8, 1.3, count)
        for (row, column), reach in zip(places, radii, strict=True):
            patch = stain[:, row - 6 : row + 7, column - 6 : column + 7]
            rows, columns = np.ogrid[-6:7, -6:7]
            patch[:, np.hypot(rows, columns) < reach] = np.array(amounts)[:, None]
    classes = draw_nuclei(random, nest, fine, coarse, stain)
    within = (..., slice(HALF, -HALF), slice(HALF, -HALF))
    return photographed(random, stain[within]), classes[within].copy()


def several(split: Split, count: int, size: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the first `count` images of a split with their classes; many in processes, as threads wait for Python."""
    draw, processors = partial(generated, split, size=size), len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor() if count < MANY else ProcessPoolExecutor(processors, get_context("spawn"))
    with pool:
        return list(pool.map(draw, range(count), chunksize=16))


def texture(random: np.random.Generator, height: int, width: int, length: float) -> np.ndarray:
    """Draw a smooth field [height, width] of deviation near 1, whose structures are about `length` pixels long."""
    (down, rows), (right, columns) = spread(height, length), spread(width, length)
    grid = random.standard_normal((int(down[-1, -1]) + 1, int(right[-1, -1]) + 1), np.float32)
    lines = sum(rows[:, tap, None] * grid[down[:, tap]] for tap in range(TAPS))
    field: np.ndarray = sum(lines[:, right[:, tap]] * columns[:, tap] for tap in range(TAPS))
    return field


@cache
def spread(side: int, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid points beside each pixel of a side and their shares in it, raised cosines; [side, TAPS] each."""
    place = np.arange(side, dtype=np.float32)[:, None] / np.float32(length)
    points = np.floor(place).astype(np.int64) + np.arange(TAPS)
    shares = 1 + np.cos(np.pi * (place + TAPS // 2 - 1 - points) / (TAPS // 2))
    return points, (shares / np.sqrt((shares**2).sum(1, keepdims=True))).astype(np.float32)


def stripes(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw a direction and return the phase [height, width] of stripes across it."""
    angle, wave = random.uniform(0, math.pi), random.uniform(0.5, 0.9)
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    phase: np.ndarray = wave * math.sin(angle) * rows[:, None] + wave * math.cos(angle) * columns
    return phase


def draw_nuclei(
    random: np.random.Generator, nest: np.ndarray, fine: np.ndarray, coarse: np.ndarray, stain: np.ndarray
) -> np.ndarray:
    """Draw nuclei into the stain [2, height, width] and return their classes [height, width], 0 between them."""
    height, width = nest.shape
    centres = placed(random, stain[1])
    corner = centres.astype(np.int64)
    kinds, drawn = kinds_of(random, nest[corner[:, 0], corner[:, 1]])
    side = np.arange(-HALF, HALF)
    shift = (centres - corner).astype(np.float32)
    down, right = side[:, None] - shift[:, :1, None], side - shift[:, 1:, None]
    angle = random.uniform(0, np.pi, (len(centres), 1, 1)).astype(np.float32)
    along, across = np.cos(angle) * right + np.sin(angle) * down, np.cos(angle) * down - np.sin(angle) * right
    pixels = (corner[:, :1, None] + side[:, None]) * width + corner[:, 1:, None] + side
    squares = (along / drawn["radius"]) ** 2 + (across / (drawn["radius"] * drawn["thin"])) ** 2
    outline = 1 - drawn["wobble"] * coarse.ravel()[pixels]
    inside = squares < outline**2
    owner, flat = np.nonzero(inside)[0], pixels[inside]
    rim = np.exp(-(((np.sqrt(squares[inside]) / outline[inside] - 0.9) / 0.14) ** 2))
    nucleolus = np.exp(-((along - 0.3 * drawn["radius"])[inside] ** 2 + across[inside] ** 2) / 2.5)
    dark, grain = (drawn[name][owner, 0, 0] for name in ("dark", "grain"))
    amount = dark * (1 + grain * fine.ravel()[flat] + (kinds[owner] == 0) * (0.25 * rim + 0.6 * nucleolus - 0.1))
    top, covered = np.zeros(height * width, np.float32), np.zeros(height * width, np.uint8)
    top[flat], covered[flat] = amount, kinds[owner] + 1  # where nuclei overlap, the last one
    below = np.bincount(flat, amount, height * width).astype(np.float32) - top + stain[0].ravel()
    stain[0] = np.where(covered > 0, top + SEEN_THROUGH * below, below).reshape(height, width)
    return covered.reshape(height, width)


def placed(random: np.random.Generator, eosin: np.ndarray) -> np.ndarray:
    """Draw the centres of nuclei [nuclei, 2], in no order, where there is tissue."""
    height, width = eosin.shape
    rows, columns = np.mgrid[HALF : height - HALF : SPACING, HALF : width - HALF : SPACING]
    centres = np.stack([rows.ravel(), columns.ravel()], 1) + random.uniform(-0.55, 0.55, (rows.size, 2)) * SPACING
    centres = np.clip(centres, HALF, np.array([height, width]) - HALF - 1)
    corner = centres.astype(np.int64)
    kept = random.random(len(centres)) < random.uniform(0.55, 0.9)
    return random.permutation(centres[kept & (eosin[corner[:, 0], corner[:, 1]] > 0.15)])


def kinds_of(random: np.random.Generator, nest: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draw the kinds of nuclei, [nuclei], that lie in a nest to a share, and each one's figures, [nuclei, 1, 1]."""
    bounds = np.cumsum(IN_STROMA + nest[:, None] * (IN_NESTS - IN_STROMA), 1)
    kinds = (random.random((len(nest), 1)) > bounds[:, :-1]).sum(1)
    drawn = {}
    for name, ranges in RANGES.items():
        low, high = np.array(ranges)[kinds].T
        drawn[name] = random.uniform(low, high).astype(np.float32)[:, None, None]
    return kinds, drawn


def photographed(random: np.random.Generator, stain: np.ndarray) -> np.ndarray:
    """Return the image [height, width, 3], uint8, of stain [2, height, width], by the law of Beer and Lambert."""
    from scipy.ndimage import gaussian_filter

    blur = random.uniform(0.5, 1.7)
    haematoxylin, eosin = (gaussian_filter(part, blur).clip(0)[..., None] for part in stain)
    absorbs = (ABSORBS + random.normal(0, 0.05, ABSORBS.shape)) * random.uniform(0.7, 1.4, (2, 1))
    absorbs = absorbs.astype(np.float32)
    light = random.uniform(0.86, 1.0) + random.normal(0, 0.015, 3)
    image = np.exp(-(haematoxylin * absorbs[0] + eosin * absorbs[1])) * light.astype(np.float32)
    noise = random.standard_normal(image.shape, np.float32)
    image += noise * np.float32(random.uniform(0.01, 0.06)) * np.sqrt(image)
    pixels: np.ndarray = (255 * image).clip(0, 255).astype(np.uint8)
    return pixels
