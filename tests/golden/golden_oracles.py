"""The four families in the `transformers` library, with random weights, and those weights in our
parameter tree.

`make golden` runs this file, which writes the golden parity files of
tests/encoders/test_transformer.py.
"""

import numpy as np
import oracles
import torch
import transformers
from golden_families import FAMILIES, HEADS, LAYERS, LIMIT, VOCABS, WIDTH, arrays, path_of, small


def build(family, seed=0):
    """A small random model of `transformers`, eager attention, no dropout."""
    vocab = VOCABS[family].size
    torch.manual_seed(seed)
    encoder = dict(
        vocab_size=vocab, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, attn_implementation="eager",
    )  # fmt: skip
    decoder = dict(vocab_size=vocab, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LIMIT)
    ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if family == "bert":
        config = transformers.BertConfig(max_position_embeddings=LIMIT, pad_token_id=0, **encoder)
        model = transformers.BertForPreTraining(config)
    elif family == "roberta":
        config = transformers.RobertaConfig(
            max_position_embeddings=LIMIT + 2, type_vocab_size=1, layer_norm_eps=1e-5,
            pad_token_id=1, bos_token_id=0,
            eos_token_id=2, **encoder,
        )  # fmt: skip
        model = transformers.RobertaForMaskedLM(config)
    elif family == "gpt":
        config = transformers.OpenAIGPTConfig(attn_implementation="eager", **decoder)
        model = transformers.OpenAIGPTLMHeadModel(config)
    else:
        config = transformers.GPT2Config(attn_implementation="eager", **decoder, **ends)
        model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name.lower() or ".ln_" in name
            p.copy_(torch.randn_like(p) * 0.2 + float(norm and name.endswith("weight")))
    return model.eval()


def run(family, model, given):
    """The oracle's outputs for `golden_families.arrays`, as torch tensors; `loss` can be
    differentiated."""
    ids, mask = (torch.tensor(given[k]).long() for k in ("input_ids", "attention_mask"))
    words = {
        "input_ids": ids,
        "attention_mask": mask,
        "output_hidden_states": True,
        "output_attentions": True,
    }
    if family in ("bert", "roberta"):
        labels = torch.full_like(ids, -100)
        labels.scatter_(
            1, torch.tensor(given["mlm_positions"]).long(), torch.tensor(given["mlm_labels"]).long()
        )
    else:
        labels = torch.where(mask > 0, ids, -100)
        labels[:, 1:][
            mask[:, :-1] == 0
        ] = -100  # ours: a token is predicted by a token, not by padding
    words["labels"] = labels
    if family == "bert":
        words["token_type_ids"] = torch.tensor(given["token_type_ids"]).long()
        words["next_sentence_label"] = torch.tensor(given["next_label"]).long()
    out = model(**words)
    found = {
        "hidden": out.hidden_states[-1],
        "layers": torch.stack(out.hidden_states),
        "attention": torch.stack(out.attentions),
        "logits": out.prediction_logits if family == "bert" else out.logits,
        "loss": out.loss,
    }
    if family == "bert":
        found["pooled"] = model.bert.pooler(out.hidden_states[-1])
    return found


def tree(family, model, tensors=None):
    """{path: array} of our parameter tree from a model's parameters, or from {name: tensor} of
    their gradients."""
    return oracles.tree_of(
        small(family).towers["main"], model, tensors or dict(model.named_parameters())
    )


def gradients(model):
    """{name: tensor} of the gradients that `backward` left."""
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }


def main():
    """One npz per family: param/<path>, input/<name>, output/<name>."""
    for family in FAMILIES:
        model, given = build(family), arrays(family)
        with torch.no_grad():
            found = run(family, model, given)
        parts = {f"param/{k}": v for k, v in tree(family, model).items()} | {
            f"input/{k}": v for k, v in given.items()
        }
        np.savez_compressed(
            path_of(family), **parts, **{f"output/{k}": v.numpy() for k, v in found.items()}
        )
        print(f"{path_of(family).name}: {path_of(family).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
