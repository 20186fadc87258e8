"""Sentences on deviations and on what no source states that several recipes share."""

from __future__ import annotations

REPLICAS = (
    "The loss is divided by the targets of the whole batch; there by those of each replica, plus "
    "1e-5, and replicas are averaged."
)
OTHER_DRAWS = (
    "Pairs, masks and order are drawn by other random numbers, and shuffled over the whole corpus."
)
TEN_TRIES = (
    "A random B is of any other document, each with the same chance; there a document is drawn "
    "until it is another, ten times at most, so that of n documents it is A's own once in n**10."
)
MICROBATCH_MEANS = (
    "There each micro-batch's loss is averaged by itself, and these means are averaged."
)
_HERE = (
    "here in bfloat16 (model.compute_dtype), with parameters, moments, norms, softmax and losses "
    "in float32."
)
TYPE_NOT_STATED = (
    f"In which type matrix products were computed stands in no source at hand; {_HERE}"
)


def other_type(dtype: str, source: str) -> str:
    """The deviation of a recipe whose source computes products in a type other than bfloat16.

    Args:
        dtype: The source's type.
        source: What says so.
    """
    return f"There matrix products are computed in {dtype} ({source}); {_HERE}"
