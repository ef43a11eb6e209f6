"""Discrete graphical models: factors, Bayesian and Markov networks, and their compilation to circuits."""

from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.elimination import Elimination
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork, Network

__all__ = ["BayesianNetwork", "Elimination", "Factor", "MarkovNetwork", "Network"]
