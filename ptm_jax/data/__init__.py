"""Text to batches: sources, tokenizers, corpora on disk, the cutting of rows, and the stream.

The path of a text: `text.sources.documents` -> `corpora.prepare.prepare` (tokenizer, shards,
manifest) -> `corpora.store.Corpus` -> `rows.examples` (how rows are cut) -> `corpora.stream.Stream`
(batches of NumPy arrays).
"""
