"""Networks over a few slices, `x[0]`, `x[1]`, repeated for sequences of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from certimap.core.arguments import check_whole
from certimap.core.domain import Categorical, Domain
from certimap.core.steps import at_step, step_of
from certimap.errors import ModelError
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

Key = tuple[str, int | None]  # a variable without its step, and the step; None for one of the whole sequence
Placed = tuple[int, Key, int]  # a variable of the slices, its key, and by how many steps its parents are shifted


@dataclass(frozen=True)
class Slices:
    """A network read as a rule: slice k says what step k has, and the last slice what all later steps have."""

    network: BayesianNetwork
    keys: tuple[Key, ...]  # of the network's variables
    places: dict[Key, int]  # the variable of each key
    by_slice: tuple[tuple[int, ...], ...]  # the variables of each slice
    whole: tuple[int, ...]  # variables of the whole sequence
    last: int  # the last slice

    @classmethod
    def of(cls, network: BayesianNetwork) -> Slices:
        """Read the names of a network; ModelError where they name no slices, or slices that cannot be repeated."""
        names = set(network.domain.names)
        keys = tuple(map(step_of, network.domain.names))
        if all(at is None for _, at in keys) and any(n.endswith("0") and f"{n[:-1]}t" in names for n in names):
            ends = {"0": 0, "t": 1}  # as pyagrum writes two slices
            keys = tuple((n[:-1], ends[n[-1]]) if n[-1] in ends else (n, None) for n, _ in keys)
        marks = {at for _, at in keys if at is not None}
        if not marks or marks != set(range(len(marks))):
            raise ModelError(f"the variables are of the slices {sorted(marks)}; expected names x[0], x[1], ...")
        if network.domain.interventions:
            raise ModelError("the network has interventions; unroll it first, and then do(...) at a step")
        by_slice = tuple(tuple(i for i, key in enumerate(keys) if key[1] == k) for k in range(len(marks)))
        whole = tuple(i for i, key in enumerate(keys) if key[1] is None)
        found = cls(network, keys, {key: i for i, key in enumerate(keys)}, by_slice, whole, len(marks) - 1)
        for i in range(len(keys)):
            found.check(i)
        return found

    def check(self, i: int) -> None:
        """Raise ModelError for a parent in a later slice or at a step without it, and for states that change."""
        (name, step), own = self.keys[i], self.named(self.keys[i])
        if (first := self.places.get((name, 0))) is not None and self.named(self.keys[first]).states != own.states:
            raise ModelError(
                f"{own.name!r} has other states than in slice 0; expected the same ones in all slices"
            )
        for parent, at in (self.keys[p] for p in self.network.parents[i]):
            if at is not None and (at > step if step is not None else at < self.last):
                accepted = f"the last slice, {self.last}" if step is None else "its own slice or an earlier one"
                raise ModelError(
                    f"{own.name!r} has a parent in slice {at}, {parent!r}; expected one in {accepted}"
                )
            later = [] if at is None else [k for k in range(at, self.last) if (parent, k + 1) not in self.places]
            if later and step in (None, self.last):
                raise ModelError(f"slice {later[0] + 1} has no {parent!r}, a parent of {own.name!r}; expected one")

    def named(self, key: Key) -> Categorical:
        """Return the variable of a key."""
        name, step = key
        own = self.network.domain.variables[self.places[name, None if step is None else min(step, self.last)]]
        assert isinstance(own, Categorical)  # networks refuse real variables
        return own if step is None else own.renamed(at_step(name, step))

    def of_step(self, step: int) -> list[Placed]:
        """Return the variables of a step."""
        k = min(step, self.last)
        return [(i, (self.keys[i][0], step), step - k) for i in self.by_slice[k]]

    def parents(self, variable: Placed) -> list[Key]:
        """Return the keys of a variable's parents."""
        i, _, shift = variable
        above = (self.keys[parent] for parent in self.network.parents[i])
        return [(name, None if at is None else at + shift) for name, at in above]

    def assembled(self, variables: Sequence[Placed], known: Sequence[tuple[Key, Factor]] = ()) -> BayesianNetwork:
        """Return the network of some variables, and of `known` ones before them, whose tables are given."""
        keys = [*(key for key, _ in known), *(key for _, key, _ in variables)]
        place, factors = {key: k for k, key in enumerate(keys)}, [factor for _, factor in known]
        for variable in variables:
            scope = tuple(place.get(key, -1) for key in (*self.parents(variable), variable[1]))
            if -1 in scope:
                raise ModelError(f"a parent of {at_step(*variable[1])!r} is missing; expected more steps")
            factors.append(self.network.factors[variable[0]].over(scope))
        made = [self.named(key) for key in keys]
        hidden = {step_of(name)[0] for name in self.network.hidden}
        return BayesianNetwork(Domain(made), factors, [at_step(*key) for key in keys if key[0] in hidden])


def unrolled(network: BayesianNetwork, steps: int) -> BayesianNetwork:
    """Return the network of a number of steps; see `certimap.unroll`."""
    steps = check_whole("steps", steps, "a whole number from 1", ModelError, low=1)
    slices = Slices.of(network)
    whole = [(i, slices.keys[i], steps - 1 - slices.last) for i in slices.whole]
    return slices.assembled([*whole, *(v for t in range(steps) for v in slices.of_step(t))])
