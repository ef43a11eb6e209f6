"""Constants that guard against rounding and underflow, and the direction in which errors are allowed.

Rounding and underflow may lower a *lower side* (the probability of an answer, a threshold). They never lower an
*upper side* (a bound, a mass, a cap, a flow of either): a value that would underflow becomes the smallest normal
number. An exact 0, or a log of -inf, comes only from structural zeros of the model and means impossible.

Every such constant stands here, with the reason why it is enough.
"""

from __future__ import annotations

# Smaller positive numbers are denormal and keep few digits, if any. An upper side below this number is raised to
# it. That is sound: a product rounded to nearest falls below it only if the true value is at most this number.
SMALLEST_NORMAL = 2.0**-1022

# Products of factors in [SMALLEST_FACTOR, 1] are safe while the running product is at least SMALLEST_PRODUCT
# before each factor: 2^-640 2^-256 = 2^-896 is normal. Smaller numbers are kept in logs, or with an exponent.
SMALLEST_FACTOR = 2.0**-256
SMALLEST_PRODUCT = 2.0**-640

# Box searches on circuits keep one log per node. Each log that they compute is off by at most
#
#     ULP (STEPS + slope (|log| + ENTROPY)),    slope = min(ALL_SUMS, SUMS (1 + (|log| + ENTROPY) / LOG_PRODUCT)),
#
# and a column of the downward pass by twice that and ULP FLOWS; `docs/what-a-certificate-means.md` proves it for
# any depth. The names say where each number stands in the array that `statistics.count_roundings` returns. A
# rounding is at most half a unit of the last place, exp and log err by less than one: ULP allows for that and for
# products of errors.
STEPS, ENTROPY, ALL_SUMS, SUMS, FLOWS = range(5)
ULP = 2.3e-16
LOG_PRODUCT = (
    443.0  # nats: -ln SMALLEST_PRODUCT, rounded down; a product of leaves passes it before a log is taken
)

# Rows of numbers with exponents (`circuits/kernels/scaled.py`) are value * 2^(-256 count). A settled row's
# positive lanes are at least 2^SETTLED. A product may go on without settling while a lower bound on it is at
# least 2^LEAST_FLOOR, a normal number. Terms of a sum that are three and more counts below another one are left
# out: both rows are settled, or products of a settled one and a weight of at least 2^-384, so that they are less
# than 2^-768 against 2^-640, a share of 2^-128, which is far below a rounding.
UNIT_BITS = 256
LOW, LOW2, LOW3 = 2.0**-256, 2.0**-512, 2.0**-768
HIGH, HIGH2, HIGH3 = 2.0**256, 2.0**512, 2.0**768
SETTLED, LEAST_FLOOR = -256.0, -1020.0

# The downward pass settles a prefix or suffix below 2^ROW_FLOOR, and the product of two below 2^OUTSIDE_FLOOR
# before a narrow leaf's entry (at least 2^-NARROW_BITS) multiplies it. Until then a product of two is at least
# 2^-960.
ROW_FLOOR, OUTSIDE_FLOOR, NARROW_BITS = -480.0, -850.0, 128

# The value of a weight with a count is above 2^-384, so its log2 is exact to rounding.
LEAST_WEIGHT = 2.0**-400

# Passes over trees use plain doubles under two conditions (`kernels/wide.py`). Two factors of at least `SAFE`
# have a product of at least 2^-900, a normal number; so where every positive entry of a table, and of every
# vector scaled to a largest entry in [`RESCALE`, 1], is at least `SAFE`, no product underflows, and a computed 0
# is structural. Where all factors are at most 1, a product that underflows loses less than 2^-1022 of the whole.
# A result above e^LOG_FLOOR > 2^-866 that is made of N of them has lost less than N 2^-156 of itself, below the
# rounding of a single operation for any N that fits in memory.
SAFE_EXPONENT = -450
SAFE, RESCALE = 2.0**SAFE_EXPONENT, 2.0**-200
LOG_FLOOR = -600.0

# A vector is scaled up by at most 2^1000 at a time, a finite factor, and again if it needs more.
LEAST_PLACES = -1000

# Conditional sums of networks flag a row in which a product of smallest positive entries may be below
# e^PRODUCT_LOG, which is above 2^-1022 = e^-708.4 by more than the rounding of a log; the row is then computed in
# logs. Messages are rescaled beyond MESSAGE_LOW and its inverse, so that few rows are flagged; the flags alone
# make it sound.
PRODUCT_LOG, MESSAGE_LOW = -690.0, 1e-40

# Vectors that differ only by rounding dominate each other: an entry is a sum of positive products, and two entries
# that are equal in exact arithmetic differ by a few roundings. Each set that drops vectors loses a factor of at
# most NEARLY, which searches add to their slack, so that any value above 1 is sound.
NEARLY = 1.0 + 1e-14

# A vector is dropped if a convex combination of others exceeds it by this factor. The combination is a sum of at
# most some hundreds of weighted ratios, each rounded a few times, so that nothing is lost.
SURELY = 1.0 + 1e-12

# An elimination scales sets by their largest reachable value, so that underflow loses less than 2^-893. Its
# threshold is at least 2^SET_FLOOR: N steps change a probability above it by a share of at most N 2^-293.
SET_FLOOR = -600

# Sums of a network's tables in doubles are repeated in logs if the product of all smallest entries may be below
# 2^SAFE_LOG2. Above it every product is normal, with room for rounding of the compared logs.
SAFE_LOG2 = -1000.0

# Least share of a mixture component bounded by an expansion. Shares are an upper side: a component that
# underflowed would count as impossible. Dividing by the share only affects where boxes are split.
LEAST_SHARE = 1e-300

# Eliminations at full width multiply up to four tables with entries of at least 2^-MIXED_BITS and at most
# 2^MIXED_TOP: a product is at least 2^-1001 and at most 2^121. Smaller positive entries are raised to the lower
# end, which only raises a bound.
MIXED_BITS, MIXED_TOP = 250, 30

# What an entry of a table loses at most where products of up to 2^12 tables with a utility near 0 underflow.
LOST_BY_UNDERFLOW = 2.0**-1010

# Least variance of a Gaussian: doubles hold its inverse, and the inverse times numbers near 1.
LEAST_VARIANCE = 1e-290

# ln of the mass of a leaf whose only allowed point is the end of its support: too small to change a sum with 1,
# and above -inf, so that the point stays possible.
LOG_OF_NO_MASS = -800.0

# Least scale of a leaf: doubles hold its inverse, and quotients by it of numbers near 1. That of a Student t is
# squared, so that its square must have an inverse.
LEAST_SCALE = 1e-290
LEAST_SQUARED_SCALE = 1e-150
