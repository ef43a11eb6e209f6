"""Maximum a posteriori inference with a proof of how good the answer is."""

__version__ = "0.1.0"
