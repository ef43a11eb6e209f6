"""The independent checker of proof files.

Nothing here is shared with the code that finds answers: no kernel, bound, solver, conditioning or ledger. It takes
a model as the plain arrays that the native format stores, and a proof as the plain arrays of its file, and needs
numpy alone. `docs/proofs.md` describes the claims and the proofs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from certimap.checker.file import Proof

if TYPE_CHECKING:
    from certimap.checker.verdict import Verdict as Verdict
    from certimap.checker.verdict import check_arrays as check_arrays

__all__ = ["Proof", "Verdict", "check_arrays"]


def __getattr__(name: str) -> Any:
    """Import the checker on first use: every result may hold a `Proof`, and few proofs are checked."""
    if name in ("Verdict", "check_arrays"):
        from certimap.checker.verdict import Verdict, check_arrays

        return Verdict if name == "Verdict" else check_arrays
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
