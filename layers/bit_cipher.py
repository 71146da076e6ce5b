"""The bit-cipher: embeddings and hidden targets that are written down from counts instead of trained.

Bit-vectors of few ones, in an order that only their width decides ("Explicit Foundation Model Optimization
with Self-Attentive Feed-Forward Neural Units", section 2.5 and appendix C). Width 3:

    100 010 001 011 101 110 111

Norm d is made of norm d - 1: every e of the basis (outer loop, reversed after d = 1), every v of norm d - 1
(inner loop, last made first), z = |v - e|, kept where sum(z) = d and z is new.
"""

import torch


def bit_vectors(count: int, width: int) -> torch.Tensor:
    """The first `count` vectors of the cipher of a width, distinct, norms never falling: uint8
    [count, width]. Raises ValueError where there are fewer, 2^width - 1.
    """
    if count > (most := 2**width - 1):
        raise ValueError(f"there are {most:,} bit-vectors of width {width}, fewer than {count:,}")
    # a vector is a number whose highest of `width` bits is its first component
    basis = [1 << place for place in reversed(range(width))]
    found, seen, previous, norm = [], set(), [0], 1
    while len(found) < count:
        made = []
        for e in basis:
            for v in previous:
                z = v ^ e
                if z.bit_count() == norm and z not in seen:
                    seen.add(z)
                    made.append(z)
        found += made
        basis = basis[::-1] if norm == 1 else basis
        previous, norm = made[::-1], norm + 1
    digits = [[z >> place & 1 for place in reversed(range(width))] for z in found[:count]]
    return torch.tensor(digits, dtype=torch.uint8)


def vectors_of(counts: torch.Tensor, width: int) -> torch.Tensor:
    """The bit-vector of each token, in decreasing order of counts, of equal ones the smaller id first.

    counts: [N] -> uint8 [N, width]. Raises as `bit_vectors` does.
    """
    order = torch.argsort(counts, descending=True, stable=True)
    vectors = torch.empty(len(counts), width, dtype=torch.uint8, device=counts.device)
    vectors[order] = bit_vectors(len(counts), width).to(counts.device)
    return vectors


def distributions(counts: torch.Tensor, width: int) -> torch.Tensor:
    """`vectors_of`, each divided by its sum: float64 [N, width]."""
    vectors = vectors_of(counts, width).double()
    return vectors / vectors.sum(1, keepdim=True)


def embeddings(counts: torch.Tensor, width: int) -> torch.Tensor:
    """Embeddings without zeros, from the counts of the tokens: [N] -> float64 [N, width], rows of sum 1.

    With E = `distributions`, f the counts and q_n = f_n / (f_n + 1) (appendix C, "densify"):

        E[n] <- q_n E[n] + (1 - q_n) p,    p = (1 - e) / sum(1 - e),    e = sum_n f_n E[n] / sum_n f_n
    """
    plain, f = distributions(counts, width), counts.double()[:, None]
    mean = (f * plain).sum(0) / f.sum()
    noise = (1 - mean) / (1 - mean).sum()
    share = f / (f + 1)
    return share * plain + (1 - share) * noise
