"""Codes as planes of bits, and the number of simplices in which they differ.

Bit b of 64 simplices is one word, and a word of all images is contiguous: (words * bits, N) uint64. Codes
that differ have a bit that differs, so a simplex is compared by XOR and OR, 64 at a time, and counted by
popcount: 256 simplices of 13 vertices are 16 words, 128 bytes an image.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

WORD = 64
CHUNK = 16384  # images compared at a time: their words stay in the cache
BLOCK = 64  # images that are compared with a chunk in turn
THREADS = 2


def bits_of(vertices: int) -> int:
    """The bits of a code from 0 to ``vertices`` - 1."""
    return max(1, (vertices - 1).bit_length())


def words_of(simplices: int) -> int:
    """The words that hold one bit of each simplex."""
    return -(-simplices // WORD)


def pack(codes: np.ndarray, vertices: int) -> np.ndarray:
    """(N, simplices) integers as planes (words * bits, N); word w has the rows from w * bits on."""
    n, simplices = codes.shape
    padded = np.zeros((n, words_of(simplices) * WORD), dtype=codes.dtype)
    padded[:, :simplices] = codes
    planes = [
        np.packbits((padded >> bit & 1).astype(bool), axis=1, bitorder="little").view("<u8")
        for bit in range(bits_of(vertices))
    ]
    return np.ascontiguousarray(np.stack(planes, -1).reshape(n, -1).T)


def unpack(planes: np.ndarray, simplices: int, vertices: int) -> np.ndarray:
    """The codes (N, simplices) of planes, in the smallest integers that hold them."""
    bits, n = bits_of(vertices), planes.shape[1]
    dtype = np.min_scalar_type(2**bits - 1)
    codes = np.zeros((n, simplices), dtype=dtype)
    rows = np.ascontiguousarray(planes.T, dtype="<u8").reshape(n, -1, bits)
    for bit in range(bits):
        plane = np.ascontiguousarray(rows[:, :, bit]).view(np.uint8)
        codes |= np.unpackbits(plane, axis=1, count=simplices, bitorder="little").astype(dtype) << bit
    return codes


def column(planes: np.ndarray, simplex: int, vertices: int) -> np.ndarray:
    """The codes (N,) of one simplex."""
    bits = bits_of(vertices)
    word, place = divmod(simplex, WORD)
    shift = np.uint64(place)
    codes = np.zeros(planes.shape[1], dtype=np.int64)
    for bit in range(bits):
        codes |= (planes[word * bits + bit] >> shift & np.uint64(1)).astype(np.int64) << bit
    return codes


def differing(planes: np.ndarray, query: np.ndarray, bits: int) -> np.ndarray:
    """In how many simplices each image (words * bits, N) differs from a query (words * bits,): (N,) uint16."""
    n = planes.shape[1]
    result = np.empty(n, dtype=np.uint16)

    def scan(bounds: tuple[int, int]) -> None:
        differs, other = np.empty((2, CHUNK), dtype=np.uint64)
        for start in range(*bounds, CHUNK):
            stop = min(start + CHUNK, bounds[1])
            _count(planes[:, start:stop], query, bits, differs, other, result[start:stop])

    middle = n // 2 if n > 4 * CHUNK else n
    with ThreadPoolExecutor(THREADS) as threads:  # numpy releases the interpreter's lock
        list(threads.map(scan, [(0, middle), (middle, n)]))
    return result


def pairs(planes: np.ndarray, bits: int, most: int) -> Iterator[np.ndarray]:
    """All pairs i < j of images that differ in at most ``most`` simplices: steps of (i, j, number), (3, n).

    Half of the words are compared first, and the others only where these leave a chance.
    """
    n, half = planes.shape[1], len(planes) // bits // 2 * bits or len(planes)

    def scan(first: int) -> np.ndarray:
        differs, other = np.empty((2, CHUNK), dtype=np.uint64)
        counts, found = np.empty(CHUNK, dtype=np.uint16), [np.empty((3, 0), dtype=np.int64)]
        for start in range(first, n, CHUNK):
            for i in range(first, min(first + BLOCK, n)):
                begin, end = max(start, i + 1), min(start + CHUNK, n)
                result = counts[: max(0, end - begin)]
                _count(planes[:half, begin:end], planes[:half, i], bits, differs, other, result)
                near = np.flatnonzero(result <= most)
                if not len(near):
                    continue
                distance = result[near]
                if half < len(planes):
                    rest, scratch = np.empty_like(distance), np.empty((2, len(near)), dtype=np.uint64)
                    _count(planes[half:, begin:end][:, near], planes[half:, i], bits, *scratch, rest)
                    distance += rest
                kept = distance <= most
                j = near[kept] + begin
                found.append(np.stack([np.full_like(j, i), j, distance[kept].astype(np.int64)]))
        return np.concatenate(found, 1)

    step = 8 * BLOCK * THREADS
    with ThreadPoolExecutor(THREADS) as threads:  # numpy releases the interpreter's lock
        for start in range(0, n, step):
            yield from threads.map(scan, range(start, min(start + step, n), BLOCK))


def _count(
    planes: np.ndarray,
    query: np.ndarray,
    bits: int,
    differs: np.ndarray,
    other: np.ndarray,
    result: np.ndarray,
) -> None:
    """``differing`` of one chunk; ``differs`` and ``other`` are scratch."""
    a, b = differs[: len(result)], other[: len(result)]
    for row in range(0, len(planes), bits):
        np.bitwise_xor(planes[row], query[row], out=a)
        for i in range(row + 1, row + bits):
            np.bitwise_or(a, np.bitwise_xor(planes[i], query[i], out=b), out=a)
        if row == 0:
            result[:] = np.bitwise_count(a)
        else:
            result += np.bitwise_count(a)


def smallest(values: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k smallest values, in order; of equal values the lower index comes first."""
    if k >= len(values):
        return np.argsort(values, kind="stable")
    near = np.flatnonzero(values <= np.partition(values, k - 1)[k - 1])
    return near[np.argsort(values[near], kind="stable")[:k]]
