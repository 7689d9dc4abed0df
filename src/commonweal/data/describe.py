"""A federation in numbers and sentences: who holds how much of what."""

import math

import numpy as np

from commonweal.data.federation import Federation

SHOWN = 5  # names or classes in a sentence


def federation_facts(federation: Federation) -> dict[str, int | str]:
    """Clients, samples, classes and how unequal they are."""
    sizes = (federation.train.sizes + federation.test.sizes).numpy()
    spread = f"mean {sizes.mean():.2f}, std {sizes.std():.2f}"
    known: dict[str, int | str] = {
        "clients": federation.clients,
        "training rows": len(federation.train.y),
        "test rows": len(federation.test.y),
        "row": "x".join(map(str, federation.train.inputs.shape[1:])) or "1",
        "rows per client": f"{sizes.min()} to {sizes.max()}, {spread}",
        "skewness": f"{skewness(federation):.2f} (AFL: training rows over the smallest client's)",
        "AFL's bound": f"{sampling_error(federation):.3f} (Theorem 10, of the error rate at 95 %)",
        "score": federation.score,
    }
    if federation.classes is None:
        return known
    return known | _class_facts(federation.counts.numpy())


def skewness(federation: Federation) -> float:
    """max over mixtures lam of 1 + chi^2(lam || m / sum m): how far one can be from all samples.

    Mohri, Sivek and Suresh, ICML 2019, section 4: bounds for the worst mixture grow with its root.
    The largest is that of the smallest client alone, sum m / min m_k (the paper prints 1 / m_k).
    """
    sizes = federation.train.sizes
    return float(sizes.sum() / sizes.min())


def sampling_error(federation: Federation, delta: float = 0.05) -> float:
    """The last term of AFL's Theorem 10 for the worst mixture: sqrt(log(K / delta) / (2 min m_k)).

    With probability 1 - delta, a loss in [0, 1] of any mixture of clients on new samples exceeds
    that on training samples by at most this and twice the model's Rademacher complexity, which
    only test samples can tell. Theorem 2 has a smaller complexity, but a larger last term: log K
    becomes the logarithm of the size of a cover of all mixtures, which has at least K points.
    """
    smallest = int(federation.train.sizes.min())
    return math.sqrt(math.log(federation.clients / delta) / (2 * smallest))


def _class_facts(counts: np.ndarray) -> dict[str, int | str]:
    """Return the facts on samples per client and class (K, classes)."""
    total = counts.sum(0)
    present = (counts > 0).sum(1)
    share = counts / counts.sum(1, keepdims=True)
    # The total variation distance from the distribution of all samples, 0 to 1.
    skew = 0.5 * np.abs(share - total / total.sum()).sum(1)
    scale = "(0: all clients alike, 1: nothing in common)"
    return {
        "classes": f"{len(total)}, of {total.min()} to {total.max()} rows",
        "classes per client": f"{present.min()} to {present.max()}",
        "label skew": f"{skew.mean():.3f} on average, {skew.max():.3f} at most {scale}",
    }


def remarks(federation: Federation) -> list[str]:
    """Return remarks that a user should read before training."""
    sentences = list(federation.notes)
    small = federation.unscored
    if small:
        some = ", ".join(small[:SHOWN]) + (" ..." if len(small) > SHOWN else "")
        sentences.append(
            f"{len(small)} clients have too few rows for a test set; "
            f"they train but are not scored: {some}"
        )
    unseen = federation.unseen
    if unseen:
        some = ", ".join(map(str, unseen[:SHOWN]))
        sentences.append(
            f"{len(unseen)} classes occur in test rows only, so no model can learn them: {some}"
        )
    return sentences
