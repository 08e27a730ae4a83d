"""Locates a checkpoint: a local directory, or a model of the Hugging Face Hub in the Hub's cache.
Uploads a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ptm_jax.convert.libraries.sentence_folder import model_folder
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown
from ptm_jax.data.stores import working

# Configuration and the files of every tokenizer. Of the weights below, the first available format
# is fetched.
SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "dict.txt",
    "vocab.bin",
    "*.model",
    "*.spm",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
)
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
FLAX = ("flax_model.msgpack", "flax_model.msgpack.index.json", "flax_model-*-of-*.msgpack")
PICKLE = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model-*-of-*.bin",
    "*_Dense/pytorch_model.bin",
)

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def locate(
    name_or_path: str | os.PathLike,
    *,
    revision: str | None = None,
    files: Sequence[str] | None = None,
    allow_pickle: bool = False,
) -> Path:
    """Returns the directory (or file) of a checkpoint.

    In an old sentence-transformers folder it is the one inside. Raises UserError.

    name_or_path  an existing path, a URL of an object store (gs://, s3://), or a name on
                  the Hub: "bert-base-uncased", "org/name"
    revision      branch, tag or commit on the Hub
    files         patterns to fetch; None: configuration, tokenizer, and weights as safetensors,
                  else as Flax msgpack, else (with `allow_pickle`) as a torch pickle

    Fetched files stay in the Hub's cache, and an interrupted download resumes. Without a network
    only the cache is used.
    """
    path = working.opened(name_or_path).expanduser()
    name = os.fspath(name_or_path)
    if name and path.exists():
        return model_folder(path)
    if not _NAME.fullmatch(name) or ".." in name:
        raise UserError(
            f"{shown(name)}: there is no such directory, and the Hugging Face Hub has no "
            "names like that"
        )
    if files is not None:
        return _snapshot(name, revision, tuple(files))
    kinds = (SAFETENSORS, FLAX, PICKLE) if allow_pickle else (SAFETENSORS, FLAX)
    for kind in kinds:
        folder = _snapshot(name, revision, SMALL + kind)
        if any((folder / weights).exists() for weights in kind[:2]):
            break
    return folder


def check_name(repo: str) -> None:
    """Raises UserError for a name that no repository of the Hub can have."""
    if not _NAME.fullmatch(repo) or ".." in repo:
        raise UserError(
            f"{shown(repo)} is no name of a repository of the Hugging Face Hub; give name or "
            "organisation/name"
        )


def push_to_hub(
    folder: str | os.PathLike,
    repo: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "",
) -> str:
    """Uploads the directory of an export to a model repository of the Hub, made if it is not there.
    Returns its address.

    `private` concerns a new repository (None: the default of its owner); `revision` is a branch.
    Needs the token of `hf auth login` or HF_TOKEN. Raises UserError.
    """
    check_name(repo)
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is no export (it has no config.json); write one with `ptm export "
            "MODEL --out DIR`"
        )
    try:
        import huggingface_hub
    except ImportError:
        raise UserError("huggingface_hub is not installed; pip install huggingface_hub") from None
    api = huggingface_hub.HfApi()
    try:
        repo = api.create_repo(repo, private=private, exist_ok=True).repo_id
        words = {
            "repo_id": repo,
            "revision": revision,
            "commit_message": message or "Export of ptm_jax",
        }
        api.upload_folder(folder_path=folder, **words)
    except Exception as error:  # errors of the Hub, the HTTP client or the operating system
        line = next(iter(str(error).strip().splitlines()), "")[:200]
        reason = f"{type(error).__name__}: {line}"
        raise UserError(
            f"{shown(repo)} was not pushed ({reason}); check the name, and log in with `hf "
            "auth login`"
        ) from None
    return f"{api.endpoint}/{repo}"


def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    """Returns the folder of a model in the cache, after fetching it if possible."""
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError:
        raise UserError(
            f"{shown(name)}: there is no such directory, and huggingface_hub is not installed"
        ) from None

    def get(local):
        return huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), local_files_only=local
        )

    try:
        return Path(get(False))
    # errors of the Hub, the HTTP client or the operating system: the model was not fetched
    except Exception as error:
        cause = error
    if not isinstance(cause, errors.RevisionNotFoundError):
        try:
            return Path(get(True))
        except Exception:
            pass  # the first error is the informative one
    if isinstance(cause, errors.RevisionNotFoundError):
        why = f"the Hub's model has no revision {shown(revision)}"
    elif isinstance(cause, errors.GatedRepoError):
        why = "the Hub gives it only to those who were granted access; log in with `hf auth login`"
    elif isinstance(cause, errors.RepositoryNotFoundError):
        why = "the Hub has no such model (a private one needs `hf auth login`)"
    else:
        root = cause.__cause__ or cause
        line = next(iter(str(root).strip().splitlines()), "")[:160]
        why = f"{constants.ENDPOINT} could not be asked ({type(root).__name__}: {line})"
    raise UserError(
        f"{shown(name)}: no such directory here, not in the cache {constants.HF_HUB_CACHE}, "
        f"and {why}; "
        "give the directory of a checkpoint"
    )
