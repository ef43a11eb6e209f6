"""The published figures that runs are set beside, with their source."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

METHODS = ("independent", "max_product", "argmax_product", "pac", "smooth_pac")
"""The published methods that certimap has too."""

SAMPLERS = ("pac", "smooth_pac")
"""Those of them that the paper proposes; a run without them is not set beside its tables."""

NETWORK_METHODS = ("aobb", "aobf", "ijgp", "wmb", "pac", "smooth_pac")
"""Those of the published tables on Chow-Liu trees; the first four by other implementations."""


@lru_cache(maxsize=1)
def paper() -> dict[str, Any]:
    """Return the published figures.

    Keys: `source`; `average_rank[dataset][split][method]`, `times_ranked_highest[split][method]`;
    `seconds[dataset][split][method]` as [mean, standard error]; `warm_start`, `pareto`, `illustration`;
    `networks`, the tables on Chow-Liu trees: `source`, `average_rank`, `times_ranked_highest`, and `seconds` as
    [mean, standard deviation].
    """
    return json.loads(resources.files("certimap_lab.bench").joinpath("paper.json").read_text())
