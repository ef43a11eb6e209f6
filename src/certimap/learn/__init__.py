"""Learning models from tables: estimators with the habits of scikit-learn, and functions that return models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from certimap.learn.full_mixture import FullMixture as FullMixture
    from certimap.learn.full_mixture import gaussian_mixture as gaussian_mixture
    from certimap.learn.hidden_model import HiddenChowLiuModel as HiddenChowLiuModel
    from certimap.learn.hidden_tree import HiddenChowLiuTree as HiddenChowLiuTree
    from certimap.learn.hidden_tree import hclt as hclt
    from certimap.learn.product_mixture import ProductMixture as ProductMixture
    from certimap.learn.product_mixture import mixture as mixture
    from certimap.learn.region_circuit import RegionGraphCircuit as RegionGraphCircuit
    from certimap.learn.region_circuit import region_graph as region_graph
    from certimap.learn.scoring import score_samples as score_samples
    from certimap.learn.spn import LearnSPN as LearnSPN
    from certimap.learn.spn import learnspn as learnspn
    from certimap.learn.tree import ChowLiuTree as ChowLiuTree
    from certimap.learn.tree import chow_liu as chow_liu
    from certimap.learn.tree_mixture import ChowLiuMixture as ChowLiuMixture
    from certimap.learn.tree_mixture import clt_mixture as clt_mixture

_PLACES = {
    "LearnSPN": "spn",
    "learnspn": "spn",
    "ChowLiuTree": "tree",
    "chow_liu": "tree",
    "ChowLiuMixture": "tree_mixture",
    "clt_mixture": "tree_mixture",
    "HiddenChowLiuTree": "hidden_tree",
    "hclt": "hidden_tree",
    "HiddenChowLiuModel": "hidden_model",
    "FullMixture": "full_mixture",
    "gaussian_mixture": "full_mixture",
    "ProductMixture": "product_mixture",
    "mixture": "product_mixture",
    "RegionGraphCircuit": "region_circuit",
    "region_graph": "region_circuit",
    "score_samples": "scoring",
}

__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "datasets":  # a module that is public as a whole
        return import_module("certimap.learn.datasets")
    if name in _PLACES:
        return getattr(import_module(f"certimap.learn.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'certimap.learn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
