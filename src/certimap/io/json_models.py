"""Models as JSON, distinguished by content: circuits of deeprob-kit and SparC, linear-Gaussian networks.

Variables of circuits are named by their numbers in the file, from 0; numbers without leaves are dropped. States
are 0, 1, ....
"""

from __future__ import annotations

import json

from certimap.circuits.circuit import Circuit
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import ModelError, ParseError
from certimap.io import linear_gaussian, sparc
from certimap.io.circuit_records import is_record
from certimap.io.deeprob import DeeprobCircuit
from certimap.io.files import AnyPath, read_text


def read_json(path: AnyPath, encoding: str | None = None) -> Circuit | LinearGaussianNetwork:
    """Read a circuit of deeprob-kit or SparC, or a linear-Gaussian network.

    Raises
    ------
    ParseError
        For a file in none of these formats, unsupported kinds of leaves, a cycle.
    """
    try:
        data = json.loads(read_text(path, encoding))
    except json.JSONDecodeError as error:
        raise ParseError(f"is no JSON ({error.msg})", path, error.lineno) from None
    except RecursionError:
        raise ParseError("nests too deeply; expected an object with a list of nodes", path) from None
    except ValueError as error:  # a number with thousands of digits
        raise ParseError(f"holds a number that is too long ({error})", path) from None
    if is_record(data) and data.get("format") == linear_gaussian.FORMAT:
        return linear_gaussian.linear_gaussian_of_record(path, data)
    if not is_record(data) or not isinstance(data.get("nodes"), list):
        raise ParseError(
            "has no list of nodes; expected a circuit of deeprob-kit or SparC, or the format "
            f"{linear_gaussian.FORMAT!r}",
            path,
        )
    reader = sparc.SparcCircuit(path, data) if "format" in data else DeeprobCircuit(path, data)
    try:
        return reader.circuit()
    except ParseError:
        raise
    except ModelError as error:
        raise ParseError(str(error), path) from None
