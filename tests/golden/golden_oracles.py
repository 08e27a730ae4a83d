"""The four families in the `transformers` library, with random weights, and those weights in our parameter tree."""

import numpy as np
import torch
import transformers
from golden_families import HEADS, LAYERS, LIMIT, VOCABS, WIDTH

HEAD_WIDTH = WIDTH // HEADS


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
            max_position_embeddings=LIMIT + 2, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0,
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
    """The oracle's outputs for `golden_families.arrays`, as torch tensors; `loss` can be differentiated."""
    ids, mask = (torch.tensor(given[k]).long() for k in ("input_ids", "attention_mask"))
    words = {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True, "output_attentions": True}
    if family in ("bert", "roberta"):
        labels = torch.full_like(ids, -100)
        labels.scatter_(1, torch.tensor(given["mlm_positions"]).long(), torch.tensor(given["mlm_labels"]).long())
    else:
        labels = torch.where(mask > 0, ids, -100)
        labels[:, 1:][mask[:, :-1] == 0] = -100  # ours: a token is predicted by a token, not by padding
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


def tree(family, tensors):
    """{path: array} of our parameter tree from {name: tensor} of the oracle (parameters, or their gradients)."""
    get = lambda name: tensors[name].detach().numpy()
    return (_encoder if family in ("bert", "roberta") else _decoder)(family, get)


def parameters(model):
    """{name: tensor} of the parameters; a tied one is there once."""
    return dict(model.named_parameters())


def gradients(model):
    """{name: tensor} of the gradients that `backward` left."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def _stack(function):
    return np.stack([function(i) for i in range(LAYERS)])


def _encoder(family, get):
    root = f"{family}."
    layer = lambda i, name: get(f"{root}encoder.layer.{i}.{name}")
    found = {
        "encoder/embed/token": get(f"{root}embeddings.word_embeddings.weight"),
        "encoder/embed/position/table": get(f"{root}embeddings.position_embeddings.weight"),
        "encoder/embed/type": get(f"{root}embeddings.token_type_embeddings.weight"),
    }

    def norm(path, weight, bias):
        found[f"{path}/scale"], found[f"{path}/bias"] = weight, bias

    norm("encoder/embed/norm", get(f"{root}embeddings.LayerNorm.weight"), get(f"{root}embeddings.LayerNorm.bias"))
    block = "encoder/stack/block"
    for name in ("query", "key", "value"):
        source = f"attention.self.{name}"
        kernel = _stack(lambda i: layer(i, f"{source}.weight").T.reshape(WIDTH, HEADS, HEAD_WIDTH))
        found[f"{block}/attention/{name}/kernel"] = kernel
        found[f"{block}/attention/{name}/bias"] = _stack(lambda i: layer(i, f"{source}.bias").reshape(HEADS, -1))
    out = _stack(lambda i: layer(i, "attention.output.dense.weight").T.reshape(HEADS, HEAD_WIDTH, WIDTH))
    found[f"{block}/attention/out/kernel"] = out
    found[f"{block}/attention/out/bias"] = _stack(lambda i: layer(i, "attention.output.dense.bias"))
    for ours, theirs in (("up", "intermediate"), ("down", "output")):
        found[f"{block}/ffn/{ours}/kernel"] = _stack(lambda i: layer(i, f"{theirs}.dense.weight").T)
        found[f"{block}/ffn/{ours}/bias"] = _stack(lambda i: layer(i, f"{theirs}.dense.bias"))
    for ours, theirs in (("attention_norm", "attention.output.LayerNorm"), ("ffn_norm", "output.LayerNorm")):
        norm(f"{block}/{ours}", *(_stack(lambda i: layer(i, f"{theirs}.{part}")) for part in ("weight", "bias")))
    mlm = "cls.predictions.transform." if family == "bert" else "lm_head."
    layer_norm = "LayerNorm" if family == "bert" else "layer_norm"
    found["heads_mlm/dense/kernel"] = get(f"{mlm}dense.weight").T
    found["heads_mlm/dense/bias"] = get(f"{mlm}dense.bias")
    norm("heads_mlm/norm", get(f"{mlm}{layer_norm}.weight"), get(f"{mlm}{layer_norm}.bias"))
    found["heads_mlm/bias"] = get("cls.predictions.bias" if family == "bert" else "lm_head.bias")
    if family == "bert":
        for ours, theirs in (("pool", "bert.pooler.dense"), ("nsp", "cls.seq_relationship")):
            found[f"heads_{ours}/dense/kernel"] = get(f"{theirs}.weight").T
            found[f"heads_{ours}/dense/bias"] = get(f"{theirs}.bias")
    return found


def _decoder(family, get):
    names = ("tokens_embed", "positions_embed") if family == "gpt" else ("wte", "wpe")
    layer = lambda i, name: get(f"transformer.h.{i}.{name}")
    found = {
        "encoder/embed/token": get(f"transformer.{names[0]}.weight"),
        "encoder/embed/position/table": get(f"transformer.{names[1]}.weight"),
    }
    block = "encoder/stack/block"
    for place, name in enumerate(("query", "key", "value")):
        part = lambda x: np.split(x, 3, -1)[place]
        kernel = _stack(lambda i: part(layer(i, "attn.c_attn.weight")).reshape(WIDTH, HEADS, HEAD_WIDTH))
        found[f"{block}/attention/{name}/kernel"] = kernel
        bias = _stack(lambda i: part(layer(i, "attn.c_attn.bias")).reshape(HEADS, HEAD_WIDTH))
        found[f"{block}/attention/{name}/bias"] = bias
    kernel = _stack(lambda i: layer(i, "attn.c_proj.weight").reshape(HEADS, HEAD_WIDTH, WIDTH))
    found[f"{block}/attention/out/kernel"] = kernel
    found[f"{block}/attention/out/bias"] = _stack(lambda i: layer(i, "attn.c_proj.bias"))
    for ours, theirs in (("up", "mlp.c_fc"), ("down", "mlp.c_proj")):
        found[f"{block}/ffn/{ours}/kernel"] = _stack(lambda i: layer(i, f"{theirs}.weight"))
        found[f"{block}/ffn/{ours}/bias"] = _stack(lambda i: layer(i, f"{theirs}.bias"))
    for ours, theirs in (("attention_norm", "ln_1"), ("ffn_norm", "ln_2")):
        found[f"{block}/{ours}/scale"] = _stack(lambda i: layer(i, f"{theirs}.weight"))
        found[f"{block}/{ours}/bias"] = _stack(lambda i: layer(i, f"{theirs}.bias"))
    if family == "gpt2":
        found["encoder/stack/final_norm/scale"] = get("transformer.ln_f.weight")
        found["encoder/stack/final_norm/bias"] = get("transformer.ln_f.bias")
    return found
