"""What each recipe is held against: literal numbers, a file a family."""

from __future__ import annotations

from bert_jax.recipes.checks.expectation import Expectation
from bert_jax.recipes.checks.expected import (
    albert,
    bert,
    modernbert,
    others,
    replaced_tokens,
    roberta,
)

EXPECTED: dict[str, Expectation] = {
    **bert.EXPECTED,
    **roberta.EXPECTED,
    **albert.EXPECTED,
    **replaced_tokens.EXPECTED,
    **modernbert.EXPECTED,
    **others.EXPECTED,
}
