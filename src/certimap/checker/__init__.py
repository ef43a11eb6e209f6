"""The independent checker of proof files.

Nothing here is shared with the code that finds answers: no kernel, bound, solver, conditioning or ledger. It takes
a model as the plain arrays that the native format stores, and a proof as the plain arrays of its file, and needs
numpy alone. `docs/proofs.md` says what it proves and how.
"""

from certimap.checker.file import Proof
from certimap.checker.verdict import Verdict, check_arrays

__all__ = ["Proof", "Verdict", "check_arrays"]
