"""A disk that takes no more, without a file system of its own."""

import contextlib
import resource
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """Have the kernel refuse what would make a file larger, in the middle of a write if need be."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
