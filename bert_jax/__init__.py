"""bert_jax: pretrain, adapt and evaluate encoder language models in JAX.

The names below are the stable surface. Each is imported from its module when it is first used, so
`import bert_jax` takes milliseconds and starts no backend.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.data.tokenizer import Tokenizer
    from bert_jax.evaluate.fill_mask import fill_mask
    from bert_jax.evaluate.pseudo_perplexity import pseudo_perplexity
    from bert_jax.evaluate.run import evaluate, load_run
    from bert_jax.experiment import Experiment
    from bert_jax.interop.export import export_hf
    from bert_jax.interop.huggingface import import_hf
    from bert_jax.models.config import EncoderConfig
    from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
    from bert_jax.models.inputs import validate_inputs
    from bert_jax.models.model import EncoderModel
    from bert_jax.models.task_heads import (
        MultipleChoice,
        SentenceEncoder,
        SequenceClassifier,
        SpanExtractor,
        TokenClassifier,
    )
    from bert_jax.objectives.masking import Masking, mask_tokens
    from bert_jax.ops.cross_entropy import cross_entropy
    from bert_jax.recipes import list_presets, list_recipes, preset, recipe
    from bert_jax.train.initial import encoder_config_of
    from bert_jax.train.loop import train

__version__ = "0.1.0"

__all__ = [
    "EncoderConfig",
    "EncoderModel",
    "Experiment",
    "MaskedLM",
    "Masking",
    "MultipleChoice",
    "PreTraining",
    "ReplacedTokenDetector",
    "SentenceEncoder",
    "SequenceClassifier",
    "SpanExtractor",
    "TokenClassifier",
    "Tokenizer",
    "cross_entropy",
    "encoder_config_of",
    "evaluate",
    "export_hf",
    "fill_mask",
    "import_hf",
    "list_presets",
    "list_recipes",
    "load_run",
    "mask_tokens",
    "preset",
    "pseudo_perplexity",
    "recipe",
    "train",
    "validate_inputs",
]

# Where each public name lives. The imports above say the same to type checkers.
_HOMES = {
    "EncoderConfig": "bert_jax.models.config",
    "EncoderModel": "bert_jax.models.model",
    "Experiment": "bert_jax.experiment",
    "MaskedLM": "bert_jax.models.heads",
    "Masking": "bert_jax.objectives.masking",
    "MultipleChoice": "bert_jax.models.task_heads",
    "PreTraining": "bert_jax.models.heads",
    "ReplacedTokenDetector": "bert_jax.models.heads",
    "SentenceEncoder": "bert_jax.models.task_heads",
    "SequenceClassifier": "bert_jax.models.task_heads",
    "SpanExtractor": "bert_jax.models.task_heads",
    "TokenClassifier": "bert_jax.models.task_heads",
    "Tokenizer": "bert_jax.data.tokenizer",
    "cross_entropy": "bert_jax.ops.cross_entropy",
    "encoder_config_of": "bert_jax.train.initial",
    "evaluate": "bert_jax.evaluate.run",
    "export_hf": "bert_jax.interop.export",
    "fill_mask": "bert_jax.evaluate.fill_mask",
    "import_hf": "bert_jax.interop.huggingface",
    "list_presets": "bert_jax.recipes",
    "list_recipes": "bert_jax.recipes",
    "load_run": "bert_jax.evaluate.run",
    "mask_tokens": "bert_jax.objectives.masking",
    "preset": "bert_jax.recipes",
    "pseudo_perplexity": "bert_jax.evaluate.pseudo_perplexity",
    "recipe": "bert_jax.recipes",
    "train": "bert_jax.train.loop",
    "validate_inputs": "bert_jax.models.inputs",
}


def __getattr__(name: str) -> Any:
    """Import `name` from its module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    # Importing `bert_jax.train.loop` has just put the package `bert_jax.train` under the name
    # `train`. It stays: it answers a call as the function does (see _verbs).
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
