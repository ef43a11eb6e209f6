"""Where floating point ends, and which way its numbers may move.

A *lower side* (the probability of an answer, a threshold) may lose to rounding and underflow. An *upper side* (a
bound, a mass, a cap, a flow of either) never does: what would underflow becomes the smallest normal number. An
exact 0, or a log of -inf, is produced by structural zeros of the model alone and means impossible.
"""

from __future__ import annotations

# Smaller positive numbers are denormal and keep few digits, if any. An upper side that came out below is raised
# to this: a product rounded to nearest comes out below it only if its true value is at most it.
SMALLEST_NORMAL = 2.0**-1022

# Products of factors in [SMALLEST_FACTOR, 1] are safe while the running product is at least SMALLEST_PRODUCT
# before each factor: 2^-640 2^-256 = 2^-896 is normal. What is smaller is kept in logs, or with an exponent.
SMALLEST_FACTOR = 2.0**-256
SMALLEST_PRODUCT = 2.0**-640
