"""Models from elsewhere: Hugging Face directories."""

from bert_jax.interop.huggingface import ImportReport, Loaded, import_hf

__all__ = ["ImportReport", "Loaded", "import_hf"]
