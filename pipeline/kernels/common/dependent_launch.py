"""Kernels that begin while the one before them ends (programmatic dependent launch, compute capability 9.0).

A kernel's start costs some 3 µs, on small batches a fifth of the net. So a kernel says when its programs have asked for
all that they read, and the next one's come as multiprocessors get free. They read and write nothing before all those
before them are done and their memory is seen. Who is launched with `DEPENDENT` therefore calls `wait_for_those_before`
before it touches memory, in each of its groups of warps, also where it needs nothing, as the one after relies on it.

Two things may be read sooner: constants, such as a lowered graph's weights; and what was written before a kernel that
itself waits before it lets the next one begin, as the merging of statistics does: who comes right after it asks for the
map's first pixels, past the L1.
"""

from triton.experimental import gluon
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

DEPENDENT = {"launch_pdl": True}  # how Triton is asked for such a launch


@gluon.jit
def wait_for_those_before():
    """Wait until the kernels before this one are done; at once where it wasn't launched with `DEPENDENT`."""
    gdc_wait()


@gluon.jit
def let_the_next_begin():
    """Say that the next kernel may come: it does as soon as all programs of this one said so and a place is free."""
    gdc_launch_dependents()
