"""Host memory that a GPU copies from and to by itself."""

import weakref

import torch
from torch import Tensor


def page_locked(part: Tensor) -> Tensor:
    """A copy of a CPU tensor of any shape in page-locked memory.

    torch's own `pin_memory` asks a backend that was registered with it before it asks CUDA, and torchax registers JAX
    without what is asked for; such a copy is registered with CUDA here, for as long as it lives.

    Raises:
        torch.cuda.CudaError: CUDA can't lock it.
    """
    try:
        return part.pin_memory()
    except RuntimeError:
        runtime, held = torch.cuda.cudart(), part.clone()
        torch.cuda.check_error(runtime.cudaHostRegister(held.data_ptr(), held.nbytes, 0))
        weakref.finalize(held, runtime.cudaHostUnregister, held.data_ptr())
        return held
