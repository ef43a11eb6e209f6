"""Models of other libraries: read from their objects, and given back to them.

One module per library. None imports the library that it reads: the object at hand brings it.
"""

from certimap.interop.dispatch import as_model, from_object

__all__ = ["as_model", "from_object"]
