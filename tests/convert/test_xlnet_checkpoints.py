"""XLNet against `transformers`: random configs, all head classes; two streams with a memory; answers by beams."""

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.family import family_of
from ptm_jax.core.towers import Tower
from ptm_jax.objectives.language import MLM

pytestmark = peers.LIVE

XLNET = [
    peers.Case("XLNetModel"),
    # The library tells the words of the content stream where it is given no order.
    peers.Case("XLNetLMHeadModel", ("lm",), labels={"lm": "mlm"}, objective=MLM(head="lm")),
    peers.Case("XLNetForSequenceClassification", ("classify",)),
    peers.Case("XLNetForTokenClassification", ("tag",)),
    peers.Case("XLNetForMultipleChoice", ("choose",)),
    peers.Case("XLNetForQuestionAnsweringSimple", ("span",)),
    peers.Case("XLNetForQuestionAnswering", ("answer",)),
]
CONFIGS = {
    "left": dict(d_model=24, n_head=3, d_inner=40),
    "right": dict(d_model=8, n_head=1, d_inner=7, n_layer=1, ff_activation="relu", summary_type="first", clamp_len=3),
    "untied": dict(d_model=12, n_head=2, ff_activation="gelu_new", tie_word_embeddings=False, summary_activation=""),
    "uni": dict(d_model=16, n_head=4, attn_type="uni", reuse_len=5, mem_len=None, summary_use_proj=False, clamp_len=6),
    "mean": dict(d_model=20, n_head=2, layer_norm_eps=1e-5, summary_type="mean", summary_activation="relu", mem_len=7),
}


def config(name):
    words = dict(vocab_size=61, n_layer=2, d_inner=24, num_labels=3, use_mems_eval=False, start_n_top=3, end_n_top=2)
    return peers.transformers.XLNetConfig(**{**words, **CONFIGS[name]})


class Rows:
    """A mask [L, L] that is indexed once, for all rows: the library adds padding to that of one row in place, and fails."""

    def __init__(self, mask):
        self.mask = mask

    def __getitem__(self, index):
        return self.mask[index].repeat(1, 1, peers.ROWS, 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_xlnet(name, tmp_path, monkeypatch):
    if name == "uni":
        published = peers.transformers.XLNetModel.create_mask
        monkeypatch.setattr(peers.transformers.XLNetModel, "create_mask", lambda *of: Rows(published(*of)))
    given = peers.drawn(61, 16, side="right" if name == "right" else "left", seed=len(name), least=6)
    if name == "mean":  # the library's mean counts padding
        given["attention_mask"][:] = 1
    peers.compare(tmp_path, config(name), XLNET, given, atol=1e-5 if name == "right" else 1e-4)


def test_permuted_words_with_a_memory(tmp_path):
    """What pre-training does: two rows in turn, half of a batch from the right, words told from the query stream."""
    torch, case = peers.torch, peers.Case("XLNetLMHeadModel", ("lm",))
    sizes, recurrence = dict(vocab_size=61, d_model=12, n_head=2, n_layer=2, d_inner=20), dict(mem_len=6, reuse_len=5)
    published = peers.transformers.XLNetConfig(**sizes, **recurrence, bi_data=True, clamp_len=9)
    (model,) = peers.torch_models(published, [case])
    model.save_pretrained(tmp_path)
    found, draw, mems, carry = checkpoint.read(tmp_path), np.random.default_rng(0), None, None

    @jax.jit
    def run(params, batch):
        def loss(params):
            tower = Tower(found.system.towers["main"], params)
            encoded = tower(batch)
            logits = tower.head("lm", encoded.extra["query"]).logits()
            return found.system.objective.of(tower, encoded, batch).value(), (encoded.memory, logits)

        return jax.value_and_grad(loss, has_aux=True)(params)

    for _ in range(2):
        batch = rows(draw)
        chosen = np.where(batch["plm_weights"] > 0, batch["input_ids"], peers.IGNORED)
        hidden = torch.tensor(batch["order"][:, None, :] >= batch["order"][:, :, None]).float()
        ids, types, labels = (torch.tensor(field).long() for field in (batch["input_ids"], batch["token_type_ids"], chosen))
        words = {"perm_mask": hidden, "target_mapping": torch.eye(10).expand(4, -1, -1), "labels": labels}
        model.zero_grad()
        out = model(ids, token_type_ids=types, mems=mems, use_mems=True, **words)
        out.loss.backward()
        (loss, (memory, logits)), gradient = run(found.params["main"], batch if carry is None else {**batch, "carry": carry})
        seen = (batch["order"] > 0) | (carry is not None)  # the first of an order sees nothing where there is no memory
        peers.close(np.asarray(logits)[seen], out.logits.detach().numpy()[seen], 1e-4, "logits")
        peers.close(loss, out.loss, 1e-4, "loss")
        peers.close(memory["layers"], torch.stack(out.mems).permute(2, 0, 1, 3), 1e-4, "memory")
        family, wanted = family_of(found.config), dict(model.named_parameters())
        lines = family.lines(found.config, found.architecture)
        for name, value in engine.write(gradient, family, lines, bare=False):
            peers.close_gradient(value, wanted[name].grad.numpy(), name)
        carry, mems = memory, list(out.mems)


def rows(draw):
    """Four rows of 10 as pre-training has them; of the part that is remembered, all is of the first sentence."""
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
