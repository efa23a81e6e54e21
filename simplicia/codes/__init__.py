"""Codes as a product: an index of images that finds similar ones and duplicates."""

from simplicia.codes.duplicates import Group
from simplicia.codes.index import Index, Neighbours, Vertex

__all__ = ["Group", "Index", "Neighbours", "Vertex"]
