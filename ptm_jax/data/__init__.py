"""Corpora: text sources, tokenizers, record stores, the cutting of rows, and the stream that training reads.

The path of a text: `sources.documents` -> `prepare.prepare` (tokenizer, shards, manifest) -> `store.Corpus` ->
`examples` (how rows are cut) -> `stream.Stream` (batches of numpy arrays). Nothing here imports JAX.
"""
