"""Reading and writing models, evidence and queries: one file per format, and one table of formats."""

from certimap.io.formats import FORMATS, Format, format_of, read, write
from certimap.io.uai import read_evidence, read_map, read_query, write_evidence, write_mmap, write_mpe, write_query

__all__ = [
    "FORMATS",
    "Format",
    "format_of",
    "read",
    "read_evidence",
    "read_map",
    "read_query",
    "write",
    "write_evidence",
    "write_mmap",
    "write_mpe",
    "write_query",
]
