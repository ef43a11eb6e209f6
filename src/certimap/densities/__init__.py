"""Densities in closed form: mixtures of Gaussians with full covariances."""

from certimap.densities.gaussian_mixture import GaussianMixture

__all__ = ["GaussianMixture"]
