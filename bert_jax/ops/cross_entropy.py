"""Cross-entropy as sums and counts, and the vocabulary projection fused with it.

`cross_entropy` is the definition. `linear_cross_entropy` computes the same from hidden states and
the output table; its blocked form never holds a (targets x vocabulary) array: the vocabulary is
walked in blocks, the logits of a block are recomputed in the backward pass.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.ops.linear import product
from bert_jax.parallel import specs

MASKED_LOGIT = -1e30  # finite: two of them may be added, and exp() of it is exactly 0


def cross_entropy(
    logits: Float[Array, "*batch vocab"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted sum of negative log-likelihoods, and the sum of the weights.

    Everything is computed in float32 whatever the type of ``logits``. With no weight at all both
    are 0: the caller divides once, over the global batch.

    Args:
        logits: Unnormalised log-probabilities.
        targets: Index of the right entry.
        weights: Weight of every target; 0 leaves it out.

    Returns:
        ``(sum of weights * nll, sum of weights)``, float32, nats.
    """
    nll, _ = token_losses(logits, targets)
    weights = weights.astype(jnp.float32)
    return jnp.sum(nll * weights), jnp.sum(weights)


def token_losses(
    logits: Float[Array, "*batch vocab"], targets: Int[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Bool[Array, "*batch"]]:
    """Negative log-likelihood of every target, and whether no logit is greater than its own.

    The target's logit is picked by comparing with an iota: no gather, so the vocabulary axis may
    be split over devices.
    """
    logits = logits.astype(jnp.float32)
    entries = jnp.arange(logits.shape[-1])
    chosen = jnp.sum(jnp.where(entries == targets[..., None], logits, 0), axis=-1)
    nll = jax.nn.logsumexp(logits, axis=-1) - chosen
    return nll, chosen >= jnp.max(logits, axis=-1)


def linear_cross_entropy(
    hidden: Float[Array, "targets d"],
    table: Float[Array, "rows d"],
    bias: Float[Array, "rows"],
    targets: Int[Array, "targets"],
    *,
    vocab_size: int,
    block: int | None,
) -> tuple[Float[Array, "targets"], Bool[Array, "targets"]]:
    """`token_losses` of ``hidden @ table.T + bias`` over the first ``vocab_size`` rows.

    Args:
        hidden: Transformed hidden states, in the compute type.
        table: Output embeddings, float32 (cast inside, so that their gradient is never rounded to
            the compute type); rows from ``vocab_size`` on are padding.
        bias: float32.
        targets: Ids below ``vocab_size``.
        vocab_size: Real entries.
        block: Vocabulary rows a block; None computes all logits at once (the reference form, and
            the one for arrays split over devices).

    Returns:
        ``(nll, correct)`` as `token_losses`, float32 and bool.
    """
    if block is None:
        logits = project(hidden, table, bias, vocab_size)
        return token_losses(logits, targets)
    # Every axis has size 1 here; naming none of them spares the loops below all layouts.
    hidden, table = (specs.constrain(x, None, None) for x in (hidden, table))
    bias, targets = (specs.constrain(x, None) for x in (bias, targets))
    result: Any = _blocked(block, vocab_size, hidden, table, bias, targets)
    nll, correct = result
    return specs.constrain(nll, specs.BATCH), specs.constrain(correct, specs.BATCH)


def project(
    hidden: Float[Array, "*batch d"],
    table: Float[Array, "rows d"],
    bias: Float[Array, "rows"],
    vocab_size: int,
) -> Float[Array, "*batch rows"]:
    """All logits in float32; those of padded vocabulary rows are `MASKED_LOGIT`."""
    layout = (specs.BATCH, *[None] * (hidden.ndim - 2), specs.TENSOR)
    letters = "abc"[: hidden.ndim - 1]
    equation = f"{letters}d,vd->{letters}v"
    logits = product(equation, hidden, table, *layout, result=jnp.float32)
    real = jnp.arange(table.shape[0]) < vocab_size
    return jnp.where(real, logits + bias, MASKED_LOGIT)


def _block_logits(vocab_size, hidden, table, bias, start, size):
    """Logits (targets, size) of table rows from ``start``, float32; the rows; their ids."""
    rows = jax.lax.dynamic_slice_in_dim(table, start, size).astype(hidden.dtype)
    offsets = jax.lax.dynamic_slice_in_dim(bias, start, size)
    logits = jax.lax.dot_general(
        hidden, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    ids = start + jnp.arange(size)
    return jnp.where(ids < vocab_size, logits + offsets, MASKED_LOGIT), rows, ids


def _over_blocks(visit, carry, rows: int, block: int):
    """``visit(carry, start, size)`` for every block of rows; the last may be smaller."""
    count, rest = divmod(rows, block)
    if count:
        carry = jax.lax.fori_loop(0, count, lambda i, c: visit(c, i * block, block), carry)
    return visit(carry, count * block, rest) if rest else carry


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _blocked(
    block, vocab_size, hidden, table, bias, targets
) -> tuple[Float[Array, "targets"], Bool[Array, "targets"]]:
    return _blocked_forward(block, vocab_size, hidden, table, bias, targets)[0]


def _blocked_forward(block, vocab_size, hidden, table, bias, targets):
    zeros = jnp.zeros_like(hidden[:, 0], jnp.float32)

    def visit(carry, start, size):
        peak, total, chosen = carry
        logits, _, ids = _block_logits(vocab_size, hidden, table, bias, start, size)
        new_peak = jnp.maximum(peak, logits.max(axis=-1))
        total = total * jnp.exp(peak - new_peak)
        total = total + jnp.exp(logits - new_peak[:, None]).sum(axis=-1)
        chosen = chosen + jnp.where(ids == targets[:, None], logits, 0).sum(axis=-1)
        return new_peak, total, chosen

    start = (zeros + MASKED_LOGIT, zeros, zeros)
    peak, total, chosen = _over_blocks(visit, start, table.shape[0], block)
    lse = peak + jnp.log(total)
    return (lse - chosen, chosen >= peak), (hidden, table, bias, targets, lse)


def _blocked_backward(block, vocab_size, saved, cotangents):
    hidden, table, bias, targets, lse = saved
    weight = cotangents[0][:, None]

    def visit(carry, start, size):
        d_hidden, d_table, d_bias = carry
        logits, rows, ids = _block_logits(vocab_size, hidden, table, bias, start, size)
        d_logits = weight * (jnp.exp(logits - lse[:, None]) - (ids == targets[:, None]))
        small = d_logits.astype(hidden.dtype)
        d_hidden = d_hidden + jax.lax.dot_general(
            small, rows, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        d_rows = jax.lax.dot_general(
            small, hidden, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        return (
            d_hidden,
            jax.lax.dynamic_update_slice_in_dim(d_table, d_rows, start, 0),
            jax.lax.dynamic_update_slice_in_dim(d_bias, d_logits.sum(axis=0), start, 0),
        )

    start = (
        jnp.zeros_like(hidden, jnp.float32),
        jnp.zeros_like(table, jnp.float32),
        jnp.zeros_like(bias, jnp.float32),
    )
    d_hidden, d_table, d_bias = _over_blocks(visit, start, table.shape[0], block)
    return d_hidden.astype(hidden.dtype), d_table.astype(table.dtype), d_bias, None


_blocked.defvjp(_blocked_forward, _blocked_backward)
