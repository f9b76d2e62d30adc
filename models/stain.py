"""The labels of the demo: where the immunohistochemistry image is stained brown.

They are a classical threshold (colour deconvolution after Ruifrok and Johnston, then Otsu), and no pathologist's: a net
that reproduces them has learnt a stain, not a diagnosis.
"""

import numpy as np
from skimage.color import rgb2hed
from skimage.filters import threshold_otsu

UNLABELLED = 255
HELD_OUT = (slice(256, 512), slice(256, 512))  # the quarter at the lower right of 512×512 is never trained on
WORD = "stain mask of scikit-image's immunohistochemistry image by a classical threshold (DAB, Otsu), no pathologist's"


def stain_mask(image: np.ndarray) -> np.ndarray:
    """1 where the DAB channel of an image [height, width, 3], uint8, lies above Otsu's threshold, else 0."""
    brown = rgb2hed(image)[..., 2]
    mask: np.ndarray = (brown > threshold_otsu(brown)).astype(np.uint8)
    return mask
