"""Every field of `ncollapse.measure`, slow and obvious: plain loops over the definitions in extended precision."""

import itertools
import math

import numpy as np

REAL = np.longdouble


def dot(a, b):
    return sum((x * y for x, y in zip(a, b)), REAL(0))


def norm(a):
    return np.sqrt(dot(a, a))


def cosine(a, b):
    length = norm(a) * norm(b)
    return dot(a, b) / length if length > 0 else REAL(0)


def average(values):
    values = list(values)
    return sum(values, REAL(0)) / len(values)


def frobenius(matrix):
    return np.sqrt(sum((x * x for x in np.asarray(matrix).ravel()), REAL(0)))


def gram(left, right):
    return np.array([[dot(a, b) for b in right] for a in left], dtype=REAL)


def jacobi(matrix):
    """Eigenvalues and eigenvectors (columns) of a symmetric matrix, by rotations."""
    a = np.array(matrix, dtype=REAL)
    size = len(a)
    vectors = np.eye(size, dtype=REAL)
    for _ in range(60):
        off = sum(a[i, j] ** 2 for i, j in itertools.combinations(range(size), 2))
        if off <= REAL(1e-45) * frobenius(a) ** 2:
            break
        for i, j in itertools.combinations(range(size), 2):
            if a[i, j] == 0:
                continue
            theta = (a[j, j] - a[i, i]) / (2 * a[i, j])
            t = (1 if theta >= 0 else -1) / (abs(theta) + np.sqrt(theta**2 + 1))
            c = 1 / np.sqrt(t**2 + 1)
            turn = np.eye(size, dtype=REAL)
            turn[i, i] = turn[j, j] = c
            turn[i, j], turn[j, i] = t * c, -t * c
            a = turn.T @ a @ turn
            vectors = vectors @ turn
    return np.diagonal(a).copy(), vectors


def pseudo_inverse(matrix, rank):
    values, vectors = jacobi(matrix)
    inverse = np.zeros_like(matrix)
    for index in np.argsort(values)[::-1][:rank]:
        inverse = inverse + np.outer(vectors[:, index], vectors[:, index]) / values[index]
    return inverse


def singular_values(matrix):
    """By one-sided rotations: columns are turned until they are orthogonal, then their norms are taken."""
    a = np.array(matrix, dtype=REAL)
    if a.shape[0] < a.shape[1]:
        a = a.T.copy()
    for _ in range(60):
        turned = False
        for i, j in itertools.combinations(range(a.shape[1]), 2):
            p, q, r = dot(a[:, i], a[:, i]), dot(a[:, j], a[:, j]), dot(a[:, i], a[:, j])
            if abs(r) <= REAL(1e-18) * np.sqrt(p * q):
                continue
            turned = True
            theta = (q - p) / (2 * r)
            t = (1 if theta >= 0 else -1) / (abs(theta) + np.sqrt(theta**2 + 1))
            c = 1 / np.sqrt(t**2 + 1)
            left, right = a[:, i].copy(), a[:, j].copy()
            a[:, i], a[:, j] = c * left - t * c * right, t * c * left + c * right
        if not turned:
            break
    return sorted((norm(a[:, i]) for i in range(a.shape[1])), reverse=True)


def spread(values):
    values = np.array([float(v) for v in values])
    mean = average(REAL(v) for v in values)
    deviation = np.sqrt(average((REAL(v) - mean) ** 2 for v in values))
    names = ("q05", "q25", "median", "q75", "q95")
    quantiles = {name: float(q) for name, q in zip(names, np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]))}
    return {
        "mean": float(mean),
        "std": float(deviation),
        "min": values.min(),
        **quantiles,
        "max": values.max(),
        "count": len(values),
    }


def simplex(classes):
    return (np.eye(classes, dtype=REAL) - REAL(1) / classes) / np.sqrt(REAL(classes - 1))


def to_simplex(matrix):
    return frobenius(matrix / frobenius(matrix) - simplex(len(matrix)))


def equinorm(rows):
    norms = [norm(row) for row in rows]
    mean = average(norms)
    return np.sqrt(average((n - mean) ** 2 for n in norms)) / mean


def equiangle(rows):
    ideal = REAL(1) / (len(rows) - 1)
    return average(abs(cosine(a, b) + ideal) for a, b in itertools.combinations(rows, 2))


def nearest_frame(weight):
    classes, dim = weight.shape
    rank = min(dim, classes - 1)
    product = gram(weight, weight)
    product = product / frobenius(product)
    centring = np.eye(classes, dtype=REAL) - REAL(1) / classes
    values, vectors = jacobi(centring @ product @ centring)
    top = vectors[:, np.argsort(values)[::-1][:rank]]
    return frobenius(product - top @ top.T / np.sqrt(REAL(rank)))


def uniform_accuracy(positive, negative):
    """Brute force over every score as a threshold."""
    best = 0
    for t in [*positive, *negative]:
        best = max(best, sum(1 for p, n in zip(positive, negative) if n <= t < p))
    return best / len(positive)


def uniform_accuracy_grid(positive, negative):
    if min(positive) > max(negative):
        return 1.0
    grid = np.linspace(float(min(positive)), float(max(negative)), 200)
    return max(sum(1 for p, n in zip(positive, negative) if p > t >= n) for t in grid) / len(positive)


def measure_features(features, labels, classes):
    """The fields that need no classifier, over the classes that have samples."""
    h = np.array(features, dtype=REAL)
    y = [int(label) for label in labels]
    total, dim = h.shape
    every_group = [[h[i] for i in range(total) if y[i] == k] for k in range(classes)]
    present = [k for k in range(classes) if every_group[k]]
    counts = [len(group) for group in every_group]
    groups, y = [every_group[k] for k in present], [present.index(k) for k in y]
    classes = len(present)
    means = np.array([sum(group, np.zeros(dim, REAL)) / len(group) for group in groups])
    centre = sum(h, np.zeros(dim, REAL)) / total
    centred = means - centre
    within = sum((np.outer(h[i] - means[y[i]], h[i] - means[y[i]]) for i in range(total)), np.zeros((dim, dim), REAL))
    within = within / total

    def between(middle):
        return sum((np.outer(m - middle, m - middle) for m in means), np.zeros((dim, dim), REAL)) / classes

    rank = min(dim, classes - 1)
    variances = [average(dot(x - means[k], x - means[k]) for x in groups[k]) for k in range(classes)]
    pairs = list(itertools.permutations(range(classes), 2))
    compact = average(
        average(cosine(a - centre, b - centre) for a in groups[k] for b in groups[k]) for k in range(classes)
    )
    compact_uncentred = average(average(cosine(a, b) for a in groups[k] for b in groups[k]) for k in range(classes))
    apart = average(average(cosine(a, b) for a in groups[k] for b in groups[m]) for k, m in pairs)
    apart_centred = average(
        average(cosine(a - centre, b - centre) for a in groups[k] for b in groups[m]) for k, m in pairs
    )
    singular = singular_values(centred)
    return (
        {
            "nc1": np.trace(within @ pseudo_inverse(between(centre), rank)) / classes,
            "nc1_balanced": np.trace(within @ pseudo_inverse(between(average(means)), rank)) / classes,
            "nc1_quotient": np.trace(within) / np.trace(between(centre)),
            "cdnv": average((variances[k] + variances[m]) / (2 * norm(means[k] - means[m]) ** 2) for k, m in pairs),
            "numerical_rank": average(
                sum(singular_values(group)) ** 2 / frobenius(np.array(group)) ** 2 for group in groups
            ),
            "nc2_means": to_simplex(gram(centred, centred)),
            "equinorm_means": equinorm(centred),
            "equiangle_means": equiangle(centred),
            "compactness": (compact + 1) / 2,
            "compactness_uncentred": (compact_uncentred + 1) / 2,
            "distinctiveness": (1 - apart) / 2,
            "distinctiveness_centred": (1 - apart_centred) / 2,
            "feature_energy": average(dot(x, x) for x in h),
            "mean_norms": [norm(means[present.index(k)]) if n else math.nan for k, n in enumerate(counts)],
            "mean_cosines": spread(cosine(a, b) for a, b in itertools.combinations(means, 2)),
            "mean_orthogonality": average(
                abs(cosine(a, b)) for a, b in itertools.combinations([m for m in means if any(m)], 2)
            ),
            "means_smallest_singular_value": singular[rank - 1],
            "counts": counts,
        },
        means,
        centred,
        centre,
        present,
    )


def measure(features, labels, weight, bias):
    """All fields but those that need a problem."""
    w = np.array(weight, dtype=REAL)
    b = np.array(bias, dtype=REAL)
    classes = len(w)
    h = np.array(features, dtype=REAL)
    y = [int(label) for label in labels]
    values, means, centred, centre, present = measure_features(features, labels, classes)
    counts = [values["counts"][k] for k in present]
    mean_weight = average(w)
    w_centred = w - mean_weight
    scores = [[dot(row, x) for row in w] for x in h]
    logits = [[s - t for s, t in zip(row, b)] for row in scores]
    decisions = [max(range(classes), key=lambda j: row[j]) for row in logits]
    nearest = [present[min(range(len(present)), key=lambda j: norm(x - means[j]))] for x in h]
    own = [float(row[k]) for row, k in zip(logits, y)]
    other = [float(max(row[j] for j in range(classes) if j != k)) for row, k in zip(logits, y)]
    margins = []
    for x, k in zip(h, y):
        angles = [cosine(row, x - centre) for row in w_centred]
        margins.append(angles[k] - max(angles[j] for j in range(classes) if j != k))
    frame = []
    for k in range(len(present)):
        rest = sum((np.sqrt(REAL(counts[m])) * means[m] for m in range(len(present))), np.zeros(h.shape[1], REAL))
        frame.append(len(present) * np.sqrt(REAL(counts[k])) * means[k] - rest)
    frame, w_present = np.array(frame), w[present]
    positive = spread(row[k] for row, k in zip(scores, y))
    negative = spread(row[j] for row, k in zip(scores, y) for j in range(classes) if j != k)
    return values | {
        "nc2": to_simplex(gram(w_centred, w_centred)),
        "nc2_uncentred": to_simplex(gram(w, w)),
        "nc2_rank": nearest_frame(w),
        "equinorm_weights": equinorm(w),
        "equiangle_weights": equiangle(w),
        "nc3": to_simplex(gram(w_present, centred)),
        "nc3_centred": to_simplex(gram(w_present - average(w_present), centred)),
        "nc3_distance": frobenius(w_present / frobenius(w_present) - centred / frobenius(centred)),
        "nc4": average(REAL(a == c) for a, c in zip(decisions, nearest)),
        "nearest_mean_accuracy": average(REAL(a == c) for a, c in zip(nearest, y)),
        "accuracy": average(REAL(a == c) for a, c in zip(decisions, y)),
        "uniform_accuracy": uniform_accuracy(own, other),
        "uniform_accuracy_grid": uniform_accuracy_grid(own, other),
        "class_accuracy": [
            average(REAL(a == k) for a, c in zip(decisions, y) if c == k) if k in present else math.nan
            for k in range(classes)
        ],
        "cosine_margin": spread(margins),
        "positive_score": positive,
        "negative_score": negative,
        "bias": spread(b),
        "weight_energy": sum((x * x for x in w.ravel()), REAL(0)),
        "nc2_relu": frobenius(w_present / frobenius(w_present) - frame / frobenius(frame)),
        "weight_norms": [norm(row) for row in w],
        "weight_cosines": spread(cosine(a, c) for a, c in itertools.combinations(w, 2)),
        "scores_concentrated": positive["std"] <= 0.5 and negative["std"] <= 0.5,
    }


def bias_residual(energy, bias, classes, per_class, weight_decay, feature_decay, bias_decay):
    """bce-vs-ce Eq. 57, term by term."""
    root = math.sqrt(weight_decay / (per_class * feature_decay))
    first = -(classes - 1) / (classes * (1 + math.exp(bias + root * energy / (classes * (classes - 1)))))
    second = 1 / (classes * (1 + math.exp(root * energy / classes - bias)))
    return first + second + bias_decay * bias


def relu_logits(weight, means, counts, weight_decay, feature_decay):
    """imbalanced-relu Eq. 21 with the constants of Eq. 6, entry by entry."""
    classes, total = len(weight), sum(counts)
    target = np.zeros((classes, classes), REAL)
    for k in range(classes):
        ratio = math.sqrt(counts[k]) / (total * math.sqrt((classes - 1) / classes * weight_decay * feature_decay))
        inside = (classes - 1) * (ratio - 1)
        height = max(math.log(inside), 0.0) if inside > 0 else 0.0
        for j in range(classes):
            target[j, k] = ((classes - 1) / classes if j == k else -1 / classes) * height
    logits = gram(np.array(weight, REAL), np.array(means, REAL))
    return frobenius(logits / frobenius(logits) - target / frobenius(target))
