"""Codes as planes of bits, and the number of simplices in which they differ.

Bit b of 64 simplices is one word, and a word of all images is contiguous: (words * bits, N) uint64. Codes
that differ have a bit that differs, so a simplex is compared by XOR and OR, 64 at a time, and counted by
popcount: 256 simplices of 13 vertices are 16 words, 128 bytes an image.
"""

import numpy as np

WORD = 64
CHUNK = 16384  # images compared at a time: their words stay in the cache


def bits_of(vertices: int) -> int:
    """The bits of a code from 0 to ``vertices`` - 1."""
    return max(1, (vertices - 1).bit_length())


def dtype_of(vertices: int) -> np.dtype:
    """The smallest integers that hold codes."""
    return np.min_scalar_type(2 ** bits_of(vertices) - 1)


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
    return np.ascontiguousarray(np.stack(planes, -1).reshape(n, words_of(simplices) * bits_of(vertices)).T)


def unpack(planes: np.ndarray, simplices: int, vertices: int) -> np.ndarray:
    """The codes (N, simplices) of planes, in the smallest integers that hold them."""
    bits, n = bits_of(vertices), planes.shape[1]
    dtype = dtype_of(vertices)
    codes = np.zeros((n, simplices), dtype=dtype)
    rows = np.ascontiguousarray(planes.T, dtype="<u8").reshape(n, len(planes) // bits, bits)
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
    """In how many simplices each image (words * bits, N) differs from a query (words * bits,): (N,)."""
    n = planes.shape[1]
    result = np.empty(n, dtype=np.uint16)
    a, b = np.empty((2, min(n, CHUNK)), dtype=np.uint64)
    for start in range(0, n, CHUNK):
        part, count = planes[:, start : start + CHUNK], result[start : start + CHUNK]
        differs, other = a[: len(count)], b[: len(count)]
        for row in range(0, len(planes), bits):
            np.bitwise_xor(part[row], query[row], out=differs)
            for i in range(row + 1, row + bits):
                np.bitwise_or(differs, np.bitwise_xor(part[i], query[i], out=other), out=differs)
            if row == 0:
                count[:] = np.bitwise_count(differs)
            else:
                count += np.bitwise_count(differs)
    return result


def nearest(
    planes: np.ndarray, query: np.ndarray, bits: int, k: int, words: int, proposed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest images of a query, nearest first, and in how many simplices they differ.

    Unless ``words`` are all words, only the ``proposed`` images nearest in these are compared in all.
    """
    if words * bits >= len(planes) or proposed >= planes.shape[1]:
        differ = differing(planes, query, bits)
        near = smallest(differ, k)
        return near, differ[near]
    prefix = words * bits
    some = np.sort(smallest(differing(planes[:prefix], query[:prefix], bits), proposed))
    differ = differing(planes[:, some], query, bits)
    near = smallest(differ, k)
    return some[near], differ[near]


def smallest(values: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k smallest values, in order; of equal values the lower index comes first."""
    if k >= len(values):
        return np.argsort(values, kind="stable")
    if len(values) > 64 * k:  # a sample tells which values are too large; that some remain is likely
        likely = np.flatnonzero(values <= np.partition(values[::16], k // 4)[k // 4])
        if k <= len(likely) < len(values):
            return likely[smallest(values[likely], k)]
    near = np.flatnonzero(values <= np.partition(values, k - 1)[k - 1])
    return near[np.argsort(values[near], kind="stable")[:k]]
