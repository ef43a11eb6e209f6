"""Models of other libraries: converted from their objects, and back to them.

One module per library. None imports its library for reading: the given object has done so.
"""

from certimap.interop.reading import as_model, from_object

__all__ = ["as_model", "from_object"]
