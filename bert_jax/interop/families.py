"""The families of the Hugging Face world that this project reads and writes."""

from __future__ import annotations

from bert_jax.interop import albert, bert, deberta, distilbert, electra, modernbert, roberta
from bert_jax.interop.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        bert.FAMILY,
        *roberta.FAMILIES,
        albert.FAMILY,
        distilbert.FAMILY,
        electra.FAMILY,
        *deberta.FAMILIES,
        modernbert.FAMILY,
    )
}
"""By ``model_type`` of config.json."""
