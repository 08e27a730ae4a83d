"""XLM, FlauBERT and XLNet against `transformers`: random configs, all head classes; answers by
beams; two streams."""

import json

import jax
import numpy as np
import peers
import pytest
import repairs

from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.family import family_of
from ptm_jax.core.towers import Tower
from ptm_jax.objectives.text.language import MLM

pytestmark = peers.LIVE

XLM = {
    "languages": dict(emb_dim=24, n_heads=3, n_langs=4),
    "narrow": dict(
        emb_dim=8, n_heads=1, n_layers=1, gelu_activation=False, summary_activation="tanh"
    ),
    "untied": dict(
        emb_dim=12,
        n_heads=2,
        tie_word_embeddings=False,
        n_langs=3,
        use_lang_emb=False,
        summary_type="last",
    ),
    "causal": dict(
        emb_dim=16, n_heads=4, sinusoidal_embeddings=True, causal=True, layer_norm_eps=1e-5
    ),
}
FLAUBERT = {
    "post": dict(emb_dim=24, n_heads=2, n_langs=2),
    "pre": dict(emb_dim=16, n_heads=4, pre_norm=True, gelu_activation=False),
    "left": dict(
        emb_dim=12,
        n_heads=1,
        layerdrop=0.2,
        n_layers=3,
        tie_word_embeddings=False,
        summary_type="cls_index",
    ),
    "single": dict(
        emb_dim=8,
        n_heads=2,
        pre_norm=True,
        layerdrop=0.1,
        n_layers=1,
        causal=True,
        summary_activation="relu",
    ),
}
XLNET = {
    "left": dict(d_model=24, n_head=3, d_inner=40),
    "right": dict(
        d_model=8,
        n_head=1,
        d_inner=7,
        n_layer=1,
        ff_activation="relu",
        summary_type="first",
        clamp_len=3,
    ),
    "untied": dict(
        d_model=12,
        n_head=2,
        ff_activation="gelu_new",
        tie_word_embeddings=False,
        summary_activation="",
    ),
    "uni": dict(
        d_model=16,
        n_head=4,
        attn_type="uni",
        reuse_len=5,
        mem_len=None,
        summary_use_proj=False,
        clamp_len=6,
    ),
    "mean": dict(
        d_model=20,
        n_head=2,
        layer_norm_eps=1e-5,
        summary_type="mean",
        summary_activation="relu",
        mem_len=7,
    ),
}
XLNET["heads"] = dict(d_model=12, n_head=3, d_head=5)
XLNET["same"] = dict(d_model=8, n_head=2, n_layer=1, attn_type="uni", same_length=True)
FAMILIES = {"XLM": XLM, "Flaubert": FLAUBERT, "XLNet": XLNET}
WORDS = dict(n_layers=2, max_position_embeddings=16, embed_init_std=0.1, end_n_top=3)
XL_WORDS = dict(n_layer=2, d_inner=24, use_mems_eval=False, start_n_top=3, end_n_top=2)


def classes(family):
    """All classes. The library shifts no labels."""
    words, task = (
        ("XLNetLMHeadModel", "lm") if family == "XLNet" else (f"{family}WithLMHeadModel", "mlm")
    )
    tasks = {
        "ForSequenceClassification": "classify",
        "ForTokenClassification": "tag",
        "ForMultipleChoice": "choose",
    }
    tasks |= {"ForQuestionAnsweringSimple": "span", "ForQuestionAnswering": "answer"}
    first, *others = peers.cases(family, tasks)
    return [first, peers.Case(words, (task,), objective=MLM(head=task)), *others]


def config(family, **fields):
    words = dict(
        vocab_size=61,
        num_labels=3,
        attn_implementation="eager",
        **(XL_WORDS if family == "XLNet" else WORDS),
    )
    return getattr(peers.transformers, f"{family}Config")(**{**words, **fields})


def drawn(seed, left, languages=0):
    given = peers.drawn(61, 16, side="left" if left else "right", seed=seed, least=6)
    if languages:
        given["langs"] = (
            np.random.default_rng(1).integers(0, languages, (peers.ROWS, 16)).astype(np.int32)
        )
    return given


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, configs in FAMILIES.items() for name in configs]
)
def test_all_classes(family, name, tmp_path, monkeypatch):
    fields = FAMILIES[family][name]
    if fields.get("pre_norm") or fields.get("attn_type") == "uni":
        repairs.runnable(monkeypatch)
    if name == "heads":  # the library's layers can, its config refuses
        monkeypatch.setattr(peers.transformers.XLNetConfig, "__class_validators__", [])
    left = name != "right" if family == "XLNet" else name in ("untied", "left")
    given = drawn(len(name), left, fields.get("n_langs", 0))
    if name == "narrow":
        del given["token_type_ids"]
    # Without an order the library's XLNet predicts the chosen tokens from the content stream.
    given["lm_labels"] = np.where(given["chosen"], given["words"], peers.IGNORED)
    if name == "mean":  # the library's mean counts padding
        given["attention_mask"][:] = 1
    atol = 1e-5 if name in ("narrow", "single", "right") else 1e-4
    peers.compare(tmp_path, config(family, **fields), classes(family), given, atol=atol)


def test_adaptive_softmax(tmp_path, monkeypatch):
    """The library's own prediction fails on a batch: here it gets the rows' tokens one after the
    other."""
    from transformers.models.xlm.modeling_xlm import XLMPredLayer

    def flat(self, x, y=None):
        scores = self.proj.log_prob(x.flatten(0, 1)).reshape(*x.shape[:2], -1)
        chosen = None if y is None else y >= 0
        return (scores,) if y is None else (self.proj(x[chosen], y[chosen]).loss, scores)

    monkeypatch.setattr(XLMPredLayer, "forward", flat)
    asm = dict(asm=True, asm_cutoffs=[20, 40], asm_div_value=2.0, tie_word_embeddings=False)
    published, given = config("XLM", emb_dim=16, n_heads=2, n_layers=1, **asm), drawn(3, left=False)
    peers.compare(tmp_path, published, classes("XLM")[:2], given, atol=1e-5)


@pytest.mark.parametrize("kind", ["XLM", "Flaubert", "XLNet"])
def test_answers_by_beams(kind, tmp_path):
    """The best starts, the best ends of each, and whether there is an answer; some places hold
    none."""
    torch, case = peers.torch, peers.Case(f"{kind}ForQuestionAnswering", ("answer",))
    sizes = (
        dict(d_model=12, n_head=2, n_layer=1)
        if kind == "XLNet"
        else dict(emb_dim=12, n_heads=2, n_layers=1)
    )
    (model,) = peers.torch_models(config(kind, **sizes, start_n_top=4, end_n_top=3), [case])
    model.save_pretrained(tmp_path)
    found, given = checkpoint.read(tmp_path), drawn(6, left=True)
    names, places = (
        ("input_ids", "attention_mask"),
        given["attention_mask"] * (given["input_ids"] > 20),
    )
    p_mask, cls = torch.tensor(1.0 - places).float(), torch.tensor(given["cls"]).long()
    with torch.no_grad():
        out = model(
            **{name: torch.tensor(given[name]) for name in names}, p_mask=p_mask, cls_index=cls
        )
    batch = {
        "input_ids": given["input_ids"],
        "segment_ids": given["attention_mask"],
        "answer_places": places,
    }
    tower = Tower(found.system.towers["main"], found.params["main"])
    ours = tower.read("answer", tower(batch), batch)  # the classifying token is the last
    many = places.sum(1) >= 4  # where less than K places are left, the best are not the only ones
    assert many.sum() >= 2
    best = (
        out.end_top_log_probs.reshape(-1, 3, 4).transpose(1, 2),
        out.end_top_index.reshape(-1, 3, 4).transpose(1, 2),
    )
    theirs = (out.start_top_log_probs, out.start_top_index, *best)
    for mine, wanted in zip(
        (ours.starts, ours.start_places, ours.ends, ours.end_places), theirs, strict=True
    ):
        peers.close(np.asarray(mine)[many], wanted[torch.tensor(many)], 1e-5, kind)
    peers.close(np.asarray(ours.none)[many], out.cls_logits[torch.tensor(many)], 1e-5, kind)


def test_permuted_words_with_a_memory(tmp_path):
    """What pre-training does: two rows in turn, half of a batch from the right, words predicted
    from the query stream."""
    torch, case = peers.torch, peers.Case("XLNetLMHeadModel", ("lm",))
    sizes, recurrence = (
        dict(vocab_size=61, d_model=12, n_head=2, n_layer=2, d_inner=20),
        dict(mem_len=6, reuse_len=5),
    )
    published = peers.transformers.XLNetConfig(**sizes, **recurrence, bi_data=True, clamp_len=9)
    (model,) = peers.torch_models(published, [case])
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"  # ours has the direction of every row in the batch
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bi_data": False}))
    found, draw, mems, carry = checkpoint.read(tmp_path), np.random.default_rng(0), None, None

    @jax.jit
    def run(params, batch):
        def loss(params):
            tower = Tower(found.system.towers["main"], params)
            encoded = tower(batch)
            logits = tower.head("lm", encoded.extra["query"]).logits()
            return found.system.objective.of(tower, encoded, batch).value(), (
                encoded.memory,
                logits,
            )

        return jax.value_and_grad(loss, has_aux=True)(params)

    for _ in range(2):
        batch = rows(draw)
        chosen = np.where(batch["plm_weights"] > 0, batch["input_ids"], peers.IGNORED)
        hidden = torch.tensor(batch["order"][:, None, :] >= batch["order"][:, :, None]).float()
        ids, types, labels = (
            torch.tensor(field).long()
            for field in (batch["input_ids"], batch["token_type_ids"], chosen)
        )
        words = {
            "perm_mask": hidden,
            "target_mapping": torch.eye(10).expand(4, -1, -1),
            "labels": labels,
        }
        model.zero_grad()
        out = model(ids, token_type_ids=types, mems=mems, use_mems=True, **words)
        out.loss.backward()
        (loss, (memory, logits)), gradient = run(
            found.params["main"], batch if carry is None else {**batch, "carry": carry}
        )
        seen = (batch["order"] > 0) | (
            carry is not None
        )  # the first of an order sees nothing where there is no memory
        peers.close(np.asarray(logits)[seen], out.logits.detach().numpy()[seen], 1e-4, "logits")
        peers.close(loss, out.loss, 1e-4, "loss")
        peers.close(memory["layers"], torch.stack(out.mems).permute(2, 0, 1, 3), 1e-4, "memory")
        family, wanted = family_of(found.config), dict(model.named_parameters())
        lines = family.lines(found.config, found.architecture)
        for name, value in engine.write(gradient, family, lines, bare=False):
            peers.close_gradient(value, wanted[name].grad.numpy(), name)
        carry, mems = memory, list(out.mems)


@pytest.mark.parametrize("seed", range(3))
def test_as_many_tokens_for_each(seed, tmp_path):
    """`same_length` of a left-to-right model with a memory: three rows of odd lengths in turn. The
    memory grows, so the number of tokens that a token sees does."""
    torch, draw = peers.torch, np.random.default_rng(seed)
    heads = int(draw.integers(1, 4))
    sizes = dict(d_model=4 * heads, n_head=heads, d_inner=9, n_layer=int(draw.integers(1, 4)))
    recurrence = dict(mem_len=int(draw.integers(1, 12)), clamp_len=int(draw.integers(-1, 6)))
    if seed % 2:
        recurrence["reuse_len"] = int(draw.integers(1, 6))
    published = config("XLNet", **{**sizes, **recurrence}, attn_type="uni", same_length=True)
    (model,) = peers.torch_models(published, [peers.Case("XLNetLMHeadModel", ("lm",))])
    model.save_pretrained(tmp_path)
    source = checkpoint.read(tmp_path)
    tower = Tower(source.system.towers["main"], source.params["main"])
    mems, fields = None, {}

    @jax.jit
    def run(batch):
        encoded = tower(batch)
        return encoded, tower.read("lm", encoded, batch).logits()

    for length in draw.choice([3, 5, 7, 9, 11], 3, replace=False):
        ids = draw.integers(6, 61, (2, length)).astype(np.int32)
        with torch.no_grad():
            out = model(torch.tensor(ids).long(), mems=mems, use_mems=True)
        batch = {"input_ids": ids, "segment_ids": np.ones_like(ids), **fields}
        encoded, logits = run(batch)
        peers.close(logits, out.logits, 1e-4, "logits")
        past = torch.stack(out.mems).permute(2, 0, 1, 3)
        peers.close(encoded.memory["layers"], past, 1e-4, "memory")
        mems, fields = out.mems, {"carry": encoded.memory}
    checkpoint.write(tmp_path / "out", source.system, source.params)
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["same_length"] is True and exported["mem_len"] == published.mem_len
    assert checkpoint.read(tmp_path / "out").system.towers == source.system.towers


def rows(draw):
    """Four rows of 10 as pre-training has them; of the part that is remembered, all is of the first
    sentence."""
    ids, slots = draw.integers(6, 61, (4, 10)).astype(np.int32), np.arange(10, dtype=np.int32)
    order = np.stack([draw.permutation(slots) for _ in range(4)])
    return {
        "input_ids": ids,
        "token_type_ids": np.where(slots < 5, 0, draw.integers(0, 2, (4, 10))).astype(np.int32),
        "order": order,
        "backward": np.array([0, 0, 1, 1], np.int32),
        "plm_positions": np.broadcast_to(slots, ids.shape),
        "plm_labels": ids,
        "plm_weights": (order > 6).astype(np.float32),
    }
