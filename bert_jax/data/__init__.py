"""Text to rows of tokens: tokenizers, sources, the tokenised corpus, packing and the pipeline."""
