"""Writes gliner.npz: a tiny model of the package gliner 0.2.29, its scores, losses and entities.

pip install --no-deps --target FOLDER gliner==0.2.29
PYTHONPATH=FOLDER python tests/golden/make_gliner.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from gliner.config import UniEncoderSpanConfig
from gliner.model import UniEncoderSpanGLiNER
from transformers import BertConfig, BertTokenizerFast

WORDS = (
    "the a of person city river paris john smith lives in on seine near big ##s ##ton wash ##ing "
    "new york , ."
)
TEXTS = ("John Smith lives in Washington, near the Seine.", "Paris on the river")
TYPES = ("person", "big city", "river")
DATA = (
    {"tokenized_text": ["John", "Smith", "lives", "in", "Washington", ","],
     "ner": [[0, 1, "person"], [4, 4, "big city"]]},
    {"tokenized_text": ["Paris", "on", "the", "river"], "ner": [[2, 3, "river"]]},
)  # fmt: skip
THRESHOLD = 0.4


def model(folder):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
    tokenizer = BertTokenizerFast(vocab={piece: i for i, piece in enumerate(pieces)})
    encoder = BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=40,
    )  # fmt: skip
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = UniEncoderSpanConfig(
        model_name=folder, encoder_config=encoder.to_dict(), hidden_size=12, max_width=3,
        num_rnn_layers=1,
    )  # fmt: skip
    made = UniEncoderSpanGLiNER.load_from_config(config, backbone_from_pretrained=False)
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for value in made.model.parameters():
            noise = torch.randn(value.shape, generator=draw)
            value.copy_(0.28 * noise if value.ndim > 1 else value + 0.1 * noise)
    return made


def main():
    with tempfile.TemporaryDirectory() as folder:
        made = model(folder)
        out = Path(folder) / "out"
        made.save_pretrained(out)
        names = ("gliner_config.json", "tokenizer.json", "tokenizer_config.json")
        files = {
            name: (out / name).read_text(encoding="utf8").replace(folder, "x") for name in names
        }
    processor = made.data_processor
    raw = processor.collate_raw_batch(list(DATA), entity_types=[list(TYPES)] * 2)
    fields = processor.tokenize_and_prepare_labels(raw, prepare_labels=True)
    inputs = {
        name: fields[name] for name in ("input_ids", "attention_mask", "words_mask", "labels")
    }
    inputs |= {"text_lengths": raw["seq_length"]} | {n: raw[n] for n in ("span_idx", "span_mask")}
    plain, focal = made.model(**inputs), made.model(**inputs, alpha=0.75, gamma=2.0)
    entities = [
        made.inference(list(TEXTS), list(TYPES), flat_ner=flat, threshold=THRESHOLD)
        for flat in (True, False)
    ]
    tensors = {f"tensor/{name}": v.numpy() for name, v in made.model.state_dict().items()}
    np.savez_compressed(
        Path(__file__).with_name("gliner.npz"), **tensors, **files,
        logits=plain.logits.detach().numpy(), loss=plain.loss.item(), focal=focal.loss.item(),
        entities=json.dumps(entities), case=json.dumps([TEXTS, TYPES, DATA, THRESHOLD]),
    )  # fmt: skip
    print(plain.loss.item(), focal.loss.item(), abs(plain.logits).max().item(), entities)


if __name__ == "__main__":
    main()
