"""Slow twins of the learners' arithmetic: plain loops over rows and states."""

from __future__ import annotations

import itertools
import math

import numpy as np


def g_test(rows, a, b):
    """G statistic and degrees of freedom of columns a and b, from a dictionary of counts."""
    n = len(rows)
    joint, left, right = {}, {}, {}
    for row in rows:
        x, y = int(row[a]), int(row[b])
        joint[x, y] = joint.get((x, y), 0) + 1
        left[x] = left.get(x, 0) + 1
        right[y] = right.get(y, 0) + 1
    g = 2.0 * sum(c * math.log(c * n / (left[x] * right[y])) for (x, y), c in joint.items())
    return g, (len(left) - 1) * (len(right) - 1)


def components(rows, threshold):
    """Label the components of the graph of pairs that a G-test finds dependent."""
    from scipy.stats import chi2

    n_columns = rows.shape[1]
    label = list(range(n_columns))
    for a, b in itertools.combinations(range(n_columns), 2):
        g, dof = g_test(rows, a, b)
        if dof > 0 and chi2.sf(g, dof) < threshold:
            old, new = label[b], label[a]
            label = [new if x == old else x for x in label]
    numbers = {}
    return [numbers.setdefault(x, len(numbers)) for x in label]


def all_states(sizes):
    return np.array(list(itertools.product(*(range(k) for k in sizes))), np.int16)


def hidden_tree_log_likelihood(model, row):
    """Sum over all states of all latent variables; a negative entry is missing."""
    total = 0.0
    n, k = len(row), model.n_hidden
    for hidden in itertools.product(range(k), repeat=n):
        p = 1.0
        for i in range(n):
            up = int(model.parent[i])
            p *= model.root_prior[hidden[i]] if up < 0 else model.transition[i][hidden[up], hidden[i]]
            if row[i] >= 0:
                p *= model.emission[i][hidden[i], row[i]]
        total += p
    return math.log(total)


def hidden_tree_counts(parameters, domain, rows):
    """Expected counts by enumeration of the latent states: root, transitions, and emissions by state."""
    n, k = len(domain), len(parameters.root_prior)
    root, transition = np.zeros(k), np.zeros((n, k, k))
    emission = np.zeros((len(parameters.emission), k))
    log_likelihood = 0.0
    for row in rows:
        weights = {}
        for hidden in itertools.product(range(k), repeat=n):
            p = 1.0
            for i in range(n):
                up = int(parameters.parent[i])
                z = hidden[i]
                p *= float(parameters.root_prior[z] if up < 0 else parameters.transition[i][hidden[up], z])
                p *= float(parameters.emission[parameters.offsets[i] + row[i], z])
            weights[hidden] = p
        total = sum(weights.values())
        log_likelihood += math.log(total)
        for hidden, p in weights.items():
            for i in range(n):
                up = int(parameters.parent[i])
                if up < 0:
                    root[hidden[i]] += p / total
                else:
                    transition[i][hidden[up], hidden[i]] += p / total
                emission[parameters.offsets[i] + row[i], hidden[i]] += p / total
    return root, transition, emission, log_likelihood


def splitmix64(key):
    """Yield uniform numbers of the stream that starts at a key."""
    word = (1 << 64) - 1
    while True:
        key = (key + 0x9E3779B97F4A7C15) & word
        z = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        yield ((z ^ (z >> 31)) >> 11) / (1 << 53)


def k_means(features, n_clusters, key, max_steps):
    """k-means++ and Lloyd with exact arithmetic on small whole numbers (centres in double precision)."""
    draws = splitmix64(key)
    points = [[float(x) for x in row] for row in features]

    def distance(p, q):
        return sum((a - b) ** 2 for a, b in zip(p, q, strict=True))

    centres = [points[int(next(draws) * len(points))]]
    while len(centres) < n_clusters:
        nearest = [min(distance(p, c) for c in centres) for p in points]
        if sum(nearest) == 0:
            break
        goal = next(draws) * sum(nearest)
        for p, d in zip(points, nearest, strict=True):
            goal -= d
            if goal < 0 and d > 0:
                centres.append(p)
                break
    used, labels = len(centres), [-1] * len(points)
    for _ in range(max_steps):
        before = labels
        labels = []
        for p in points:
            values = [np.float32(distance(p, c)) for c in centres]
            labels.append(values.index(min(values)))
        if sum(a != b for a, b in zip(before, labels, strict=True)) * 1000 <= len(points):
            break
        for c in range(used):
            mine = [p for p, label in zip(points, labels, strict=True) if label == c]
            if mine:
                centres[c] = [
                    float(np.float32(np.float32(sum(x)) / np.float32(len(mine)))) for x in zip(*mine, strict=True)
                ]
    return used, labels
