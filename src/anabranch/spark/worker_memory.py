"""Tunes the memory of Spark's Python processes: what the collector visits, and what malloc gives back.

Spark collects garbage after each task, and on the driver after each plan and commit. A collection visits the
objects of all modules, including those of Spark, Arrow and the client. This takes up to 50 ms, more than the
rest of the work of a small micro-batch. And malloc returns freed blocks of the size of an entry to the
kernel, so every entry would need new pages, which takes a quarter of the time to decode it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

REUSED_BYTES = 32 * 2**20
"""Freed blocks up to this size stay with the process; freed memory beyond twice this size is returned."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

prepared: dict[int, int] = {}
"""The number of loaded modules by process in which this was done; a forked process does it again."""


def prepare_worker() -> None:
    """In a process of Spark, exempt all present objects from garbage collection and reuse freed memory.

    Later calls do nothing unless more modules are loaded by then: PySpark loads pandas at the end of a
    process's first write, which alone would cost 12 ms after each task. Reference counts still free exempted
    objects; only cycles among them stay, and modules live until the process ends anyway. The process of an
    application is left alone.
    """
    known = prepared.get(os.getpid())
    if known == len(sys.modules) or not _is_process_of_spark():
        return
    gc.freeze()
    if known is None:
        reuse_freed_memory()
    prepared[os.getpid()] = len(sys.modules)


def _is_process_of_spark() -> bool:
    """Whether the main program is a module of PySpark, as in its workers and planning processes."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def reuse_freed_memory() -> bool:
    """Let malloc keep freed blocks; return False if the C library is not glibc and nothing was changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES) and mallopt(_M_TRIM_THRESHOLD, 2 * REUSED_BYTES))
