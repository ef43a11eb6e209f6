"""Properties computed once, for objects that several threads share."""

import functools
from threading import RLock
from typing import TYPE_CHECKING

# Held where an object may get its `__dict__`. CPython 3.11 collects garbage meanwhile; if a finalizer then lets a
# second thread give the same object another one, both own the same memory, and the process crashes.
guard = RLock()

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 (named like Python's)
        """Python's own for threads: all get the value stored first, and none waits while another computes."""

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = self.func(instance)
            with guard:
                return instance.__dict__.setdefault(self.attrname, value)
