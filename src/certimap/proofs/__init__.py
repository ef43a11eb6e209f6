"""Writes proof files from the record of a run, its model and its query, and has them checked.

The proof of an answer to a circuit is written while the search runs (`solvers/record.py`); if the solver keeps no
boxes, `finish` searches once more. Networks are proved after the answer: by elimination
(`vectors`), by steps that make the network smaller (`steps`), or by a relaxation (`relaxations`).
"""

from certimap.proofs.finish import answers_of, check, finished, reduced_network, wants_for_proof, with_answers

__all__ = ["answers_of", "check", "finished", "reduced_network", "wants_for_proof", "with_answers"]
