"""torch and transformers as peers of a benchmark, in a child process: one unit of work per request.

`Peer` starts this module as a child and requests one unit at a time, so both sides alternate
strictly and share no process. A child that compiles for too long is killed. Requests and answers
are JSON lines. The child measures its own time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Failed(Exception):
    """The child ended or did not answer in time. The message is one line."""


class TooSlow(Failed):
    """The child did not answer in time."""


def missing() -> str | None:
    """Returns the reason why there is no peer, or None."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    return (
        f"{' and '.join(absent)} not installed; pip install 'ptm_jax[parity]'" if absent else None
    )


COMMAND = "-m", "benchmarks.peer"
"""The arguments of Python that begin the child of `Peer`."""


class Peer:
    """A child process for `task` at given sizes. A call runs one unit of a variant and returns its
    seconds. After a failure the next call begins another process."""

    def __init__(
        self,
        task: str,
        sizes: Mapping[str, Any],
        threads: int,
        environment: Mapping[str, str] | None = None,
    ):
        source = str(Path(__file__).resolve().parents[1])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        names = {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        path = {"PYTHONPATH": os.pathsep.join(paths)}
        self._environment = {**os.environ, **names, **path, **(environment or {})}
        self._request = {"task": task, "threads": threads, **sizes}
        self._start()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            [sys.executable, *COMMAND],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=self._environment,
        )  # fmt: skip
        self.facts = self._ask(self._request, 300)

    def __call__(self, variant: Mapping[str, Any], limit: float = 600) -> float:
        if self._errors.closed:
            self._start()
        return self._ask(variant, limit)["seconds"]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child process."""
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.stdout.close()
        self._errors.close()

    def _ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        try:
            self._child.stdin.write(json.dumps(dict(request)).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            raise self._failed("ended") from None
        ready, _, _ = select.select([self._child.stdout], [], [], limit)
        if not ready:
            raise TooSlow(str(self._failed(f"no answer within {limit:.0f} s")))
        line = self._child.stdout.readline()
        if not line:
            raise self._failed("ended")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _failed(self, what: str) -> Failed:
        self._errors.seek(0)
        lines = [
            line
            for line in self._errors.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        self.close()
        return Failed(f"{what}: {lines[-1].strip()[:200]}" if lines else what)


class _Step:
    """BertForMaskedLM with fused AdamW. `labels` cover the same share of positions as our step
    predicts."""

    def __init__(self, request: Mapping[str, Any]):
        import torch
        from transformers import BertConfig, BertForMaskedLM

        self.torch, self.device = torch, _device(torch)
        config = BertConfig(
            vocab_size=request["vocab"],
            hidden_size=request["width"],
            num_hidden_layers=request["layers"],
            num_attention_heads=request["heads"],
            intermediate_size=4 * request["width"],
            max_position_embeddings=max(512, request["length"]),
        )
        torch.manual_seed(0)
        self.model = BertForMaskedLM(config).train().to(self.device)
        self.compiled = None
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
        )
        shape = (request["batch"], request["length"])
        self.ids = torch.randint(request["vocab"] // 2, request["vocab"], shape, device=self.device)
        picked = torch.rand(shape, device=self.device).argsort(1)[:, : request["predictions"]]
        chosen = torch.zeros(shape, dtype=torch.bool, device=self.device).scatter(1, picked, True)
        self.labels = torch.where(chosen, self.ids, -100)

    def __call__(self, variant: Mapping[str, Any]) -> float:
        self.set(variant)
        start = _now(self.torch, self.device)
        self.update(variant, input_ids=self.ids, labels=self.labels)
        return _now(self.torch, self.device) - start

    def set(self, variant: Mapping[str, Any], dynamic: bool | None = None) -> None:
        """Configures the model for a variant."""
        torch = self.torch
        torch.set_float32_matmul_precision(
            "medium" if variant["precision"] == "float32, medium" else "highest"
        )
        if self.model.config._attn_implementation != variant["attention"]:
            self.model.set_attn_implementation(variant["attention"])
        if variant.get("compile") and self.compiled is None:
            self.compiled = torch.compile(self.model, dynamic=dynamic)

    def update(self, variant: Mapping[str, Any], **batch: Any) -> None:
        """Runs one training step."""
        torch = self.torch
        model = self.compiled if variant.get("compile") else self.model
        with torch.autocast(
            self.device, torch.bfloat16, enabled=variant["precision"] == "bfloat16 autocast"
        ):
            loss = model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class _Lengths(_Step):
    """Training steps over the batches of a variant's `order`: lists of lengths, each batch padded
    to its longest."""

    def __init__(self, request: Mapping[str, Any]):
        super().__init__(request)
        self.batches = {
            order: [self._padded(lengths, request["vocab"]) for lengths in batches]
            for order, batches in request["batches"].items()
        }

    def _padded(self, lengths: list[int], vocab: int) -> dict[str, Any]:
        torch = self.torch
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        ids = torch.where(mask, torch.randint(vocab // 2, vocab, mask.shape), 0)
        labels = torch.where(mask & (torch.rand(mask.shape) < 0.15), ids, -100)
        batch = {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}
        return {name: value.to(self.device) for name, value in batch.items()}

    def __call__(self, variant: Mapping[str, Any]) -> float:
        self.set(variant, dynamic=True)
        start = _now(self.torch, self.device)
        for batch in self.batches[variant["order"]]:
            self.update(variant, **batch)
        return _now(self.torch, self.device) - start


class _Layer(_Step):
    """One BertLayer with dropout, forward and backward."""

    def __init__(self, request: Mapping[str, Any]):
        super().__init__({**request, "layers": 1, "vocab": 16, "predictions": 1})
        self.layer = self.model.bert.encoder.layer[0]
        shape = (request["batch"], request["length"], request["width"])
        self.x = self.torch.randn(shape, device=self.device, requires_grad=True)
        self.g = self.torch.randn(shape, device=self.device)

    def __call__(self, variant: Mapping[str, Any]) -> float:
        torch = self.torch
        self.set({**variant, "compile": False})
        if variant.get("compile") and self.compiled is None:
            self.compiled = torch.compile(self.layer)
        layer = self.compiled if variant.get("compile") else self.layer
        start = _now(torch, self.device)
        with torch.autocast(
            self.device, torch.bfloat16, enabled=variant["precision"] == "bfloat16 autocast"
        ):
            y = layer(self.x)
        y = y if isinstance(y, torch.Tensor) else y[0]
        y.backward(self.g.to(y.dtype))
        seconds = _now(torch, self.device) - start
        self.x.grad = None
        self.layer.zero_grad(set_to_none=True)
        return seconds


class _Recurrent:
    """nn.LSTM, forward and backward."""

    def __init__(self, request: Mapping[str, Any]):
        import torch

        self.torch, self.device = torch, _device(torch)
        width, inputs = request["width"], request["inputs"]
        self.module = torch.nn.LSTM(
            inputs, width, batch_first=True, proj_size=request["project"]
        ).to(self.device)
        self.x = torch.randn(
            request["batch"], request["length"], inputs, device=self.device, requires_grad=True
        )

    def __call__(self, variant: Mapping[str, Any]) -> float:
        torch = self.torch
        start = _now(torch, self.device)
        with torch.autocast(
            self.device, torch.bfloat16, enabled=variant["precision"] == "bfloat16 autocast"
        ):
            states = self.module(self.x)[0]
        states.float().sum().backward()
        seconds = _now(torch, self.device) - start
        self.x.grad = None
        self.module.zero_grad(set_to_none=True)
        return seconds


class _Generate:
    """GPT2LMHeadModel.generate, greedy, with its key-value cache."""

    def __init__(self, request: Mapping[str, Any]):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        self.torch, self.request, self.device = torch, request, _device(torch)
        config = GPT2Config(
            vocab_size=request["vocab"],
            n_embd=request["width"],
            n_layer=request["layers"],
            n_head=request["heads"],
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        torch.manual_seed(0)
        self.model = GPT2LMHeadModel(config).eval().to(self.device)

    def __call__(self, variant: Mapping[str, Any]) -> float:
        torch, new = self.torch, self.request["new"]
        if self.model.config._attn_implementation != variant["attention"]:
            self.model.set_attn_implementation(variant["attention"])
        self.model.to(getattr(torch, variant["precision"]))
        ids = torch.randint(
            1, self.request["vocab"], (variant["batch"], self.request["length"]), device=self.device
        )
        start = _now(torch, self.device)
        with torch.inference_mode():
            found = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                use_cache=True,
                max_new_tokens=new,
                min_new_tokens=new,
            )
        seconds = _now(torch, self.device) - start
        if found.shape[1] != ids.shape[1] + new:
            raise RuntimeError(f"{found.shape[1] - ids.shape[1]} new tokens instead of {new}")
        return seconds


class _Sampling:
    """Greedy decoding of an embedding, nn.LSTM and a linear layer, one token after the other with
    its state."""

    def __init__(self, request: Mapping[str, Any]):
        import torch

        self.torch, self.request, self.device = torch, request, _device(torch)
        width, vocab = request["width"], request["vocab"]
        lstm = torch.nn.LSTM(width, width, request["layers"], batch_first=True)
        self.parts = torch.nn.ModuleList(
            [torch.nn.Embedding(vocab, width), lstm, torch.nn.Linear(width, vocab)]
        )
        self.parts.eval().to(self.device)

    def __call__(self, variant: Mapping[str, Any]) -> float:
        torch = self.torch
        embed, lstm, head = self.parts.to(getattr(torch, variant["precision"]))
        ids = torch.randint(
            1, self.request["vocab"], (variant["batch"], self.request["length"]), device=self.device
        )
        start, found, state = _now(torch, self.device), [], None
        with torch.inference_mode():
            for _ in range(self.request["new"]):
                states, state = lstm(embed(ids), state)
                ids = head(states[:, -1:]).argmax(-1)
                found.append(ids)
            torch.cat(found, 1).tolist()
        return _now(torch, self.device) - start


class _Attention:
    """scaled_dot_product_attention, forward and backward, with the bias or mask of a case."""

    def __init__(self, request: Mapping[str, Any]):
        import torch

        self.torch, self.device, self.case = torch, _device(torch), request["case"]
        shape = [request[name] for name in ("batch", "heads", "length", "width")]
        self.qkv = [torch.randn(shape, device=self.device) for _ in range(3)]
        self.table = torch.randn(32, request["heads"], device=self.device, requires_grad=True)
        self.buckets = torch.tensor(request["buckets"], device=self.device)
        segments = torch.tensor(request["segments"], device=self.device)
        self.mask = (segments[:, :, None] == segments[:, None, :])[:, None]

    def __call__(self, variant: Mapping[str, Any]) -> float:
        torch = self.torch
        dtype = getattr(torch, variant["precision"])
        qkv = [x.to(dtype).requires_grad_() for x in self.qkv]
        start = _now(torch, self.device)
        given: dict[str, Any] = {"is_causal": True} if self.case == "causal" else {}
        if self.case == "t5":
            given = {
                "attn_mask": self.table[self.buckets].permute(2, 0, 1)[None].to(dtype),
                "scale": 1.0,
            }
        if self.case == "packed":
            given = {"attn_mask": self.mask}
        torch.nn.functional.scaled_dot_product_attention(*qkv, **given).sum().backward()
        seconds = _now(torch, self.device) - start
        self.table.grad = None
        return seconds


class _CrossEntropy:
    """A linear layer over a vocabulary and torch's cross_entropy, forward and backward."""

    def __init__(self, request: Mapping[str, Any]):
        import torch

        self.torch, self.device = torch, _device(torch)
        tokens, width, vocab = (request[name] for name in ("tokens", "width", "vocab"))
        self.x = torch.randn(tokens, width, device=self.device, requires_grad=True)
        self.layer = torch.nn.Linear(width, vocab, device=self.device)
        self.labels = torch.randint(vocab, (tokens,), device=self.device)

    def __call__(self, variant: Mapping[str, Any]) -> float:
        torch = self.torch
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None
        start = _now(torch, self.device)
        with torch.autocast(
            self.device, torch.bfloat16, enabled=variant["precision"] == "bfloat16 autocast"
        ):
            loss = torch.nn.functional.cross_entropy(self.layer(self.x), self.labels)
        loss.backward()
        return _now(torch, self.device) - start


_TASKS = {
    "step": _Step,
    "lengths": _Lengths,
    "layer": _Layer,
    "attention": _Attention,
    "cross_entropy": _CrossEntropy,
    "generate": _Generate,
    "sampling": _Sampling,
    "recurrent": _Recurrent,
}


def _device(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _now(torch: Any, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Answers requests until the input ends. Output that libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    import torch
    import transformers

    torch.set_num_threads(request["threads"])
    task = _TASKS[request["task"]](request)
    facts = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(facts), file=answers)
    for line in sys.stdin:
        try:
            answer = {"seconds": task(json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
