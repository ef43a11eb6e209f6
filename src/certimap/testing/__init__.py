"""What third parties need to test posteriors and solvers of their own."""

from certimap.testing.posteriors import TablePosterior

__all__ = ["TablePosterior"]
