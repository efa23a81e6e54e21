"""Workers that are processes."""

import sys
import time
from itertools import pairwise

import pytest

from simplicia.data import image_files, workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are threads")
COUNT = workers.MOST_THREADS + 1


def hold(pixels):
    """When an image of so many pixels was decoded: start and end."""
    with image_files.in_flight(pixels):
        start = time.monotonic()
        time.sleep(0.1)
        return start, time.monotonic()


@pytest.mark.parametrize("pixels, together", [(100, True), (image_files.MOST_PIXELS // COUNT + 1, False)])
def test_processes_decode_one_large_image_at_a_time(pixels, together):
    pool = workers.Workers(COUNT, hold)
    futures = [pool.submit(pixels) for _ in range(2 * COUNT)]
    times = sorted(pool.result(future, pixels) for future in futures)
    pool.close()
    overlap = any(start < end for (_, end), (start, _) in pairwise(times))
    assert pool.in_processes and overlap == together
