"""Models from elsewhere and for elsewhere: Hugging Face directories."""

from bert_jax.interop.export import ExportReport, export_hf
from bert_jax.interop.huggingface import ImportReport, Loaded, encoder_config_of, import_hf

__all__ = [
    "ExportReport",
    "ImportReport",
    "Loaded",
    "encoder_config_of",
    "export_hf",
    "import_hf",
]
