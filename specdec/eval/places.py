"""Where a token stands in a law: the one number that says whether tokens come from laws that differ each time.

List a law's tokens by falling probability (ties by lower id) as intervals of [0, 1). A token's place is a random point
of its interval. If each token is drawn from its law, whatever the laws were, places are uniform and independent
(Rosenblatt, "Remarks on a multivariate transformation", 1952); tokens that are unlikelier than they should be have
places near 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def place(law: torch.Tensor, token: int, coin: float, without: Sequence[int] = ()) -> float:
    """The place of `token` in `law`, float64 [V], from which the tokens `without` are removed first.

    `coin` is uniform in [0, 1). Answers 1 for a token that cannot be drawn.
    """
    if without:
        law = law.clone()
        law[list(without)] = 0.0
        law = law / law.sum()
    own = law[token]
    if not own > 0:
        return 1.0
    num_before = int((law[:token] == own).sum())
    return float(law[law > own].sum() + (num_before + coin) * own)
