"""Kinds of leaves over real variables: one file per kind, with its functions, its learner and its name."""

from certimap.circuits.leaves.kind import LeafFunctions, LeafKind, leaf_kind, leaf_kinds, register_leaf

__all__ = ["LeafFunctions", "LeafKind", "leaf_kind", "leaf_kinds", "register_leaf"]
