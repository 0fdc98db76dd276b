"""A GGUF file as a checkpoint: `CheckpointFiles` with the same interface, whatever is in it."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from rope_jax.checkpoints.files import (
    CONFIG,
    GENERATION,
    TOKENIZER_CONFIG,
    CheckpointFiles,
    TensorInfo,
)
from rope_jax.checkpoints.gguf.architectures import (
    ROPE_FACTORS,
    Architecture,
    architecture_of,
    config_of,
)
from rope_jax.checkpoints.gguf.header import Stored, read_header
from rope_jax.checkpoints.gguf.tokenizer import special_tokens, tokenizer_json, warnings_of
from rope_jax.checkpoints.tensors import Row
from rope_jax.errors import UserError

_ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
_EXPERTS = re.compile(r"layers/mlp/experts/(gate|up|down)_proj/(kernel|bias)")
# Names as llama.cpp's conversion scripts have them before they look them up.
_SPELLINGS = {
    ".norms.{}": "",
    "e_score_correction_bias": "e_score_correction.bias",
    "self_attn.sinks": "self_attn.sinks.weight",
    ".dt_bias": ".dt_proj.bias",
}
_BLOCK = re.compile(r"blk\.(\d+)\.")
_BY_VALUE_HEAD = re.compile(r".*\.(attn_qkv|attn_gate|ssm_(?!norm).*)(\..*)?")
"""Tensors of a gated delta net whose rows, those of ssm_out columns, are of value heads."""
# Latent attention's matrix from which keys and values are made, which llama.cpp takes apart: keys
# [heads, rank, width], values [heads, width, rank].
_KEYS, _VALUES, _BOTH = (f".attn_{x}_b.weight" for x in ("k", "v", "kv"))
_QKVZ, _GROUPED = "qkvz.weight", (".attn_q.weight", ".ssm_ba.weight")
_SHARED_GATE = "ffn_gate_inp_shexp.weight"
_QUERIES_AND_KEYS = {".attn_q.": "num_attention_heads", ".attn_k.": "num_key_value_heads"}


class GgufFiles(CheckpointFiles):
    """A GGUF file, or the parts of one. Its tensors have llama.cpp's names.

    Quantized tensors become float32 as they are read, one at a time. UserError: the file is damaged
    or holds something else than a language model that can be read here.
    """

    def __init__(self, path: Path) -> None:
        self.folder = self.config_file = path
        self.adapter = None
        header = self.header = read_header(path)
        self._metadata, self._shards = header.metadata, list(header.files)
        self._name, self._architecture, _ = architecture_of(header.metadata, str(path))
        self._stored = {
            # which llama.cpp's quantization makes a vector
            name: stored._replace(shape=(1, *stored.shape), data=stored.data.reshape(1, -1))
            if name.endswith(_SHARED_GATE) and len(stored.shape) == 1
            else stored
            for name, stored in header.tensors.items()
        }
        embedding = self._stored.get("token_embd.weight")
        if embedding is None:
            raise UserError(
                f"{path}: has no token_embd.weight, like a vocabulary or an adapter; name the file "
                "of the model"
            )
        factors = {
            name: _floats(self._stored.pop(name)) for name in ROPE_FACTORS if name in self._stored
        }
        self.warnings = warnings_of(header.metadata, str(path))
        try:
            self.config = config_of(
                *(header.metadata, self._stored, factors, embedding.shape[0], str(path)),
                self.warnings.append,
            )
        except (TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: has metadata of a wrong kind ({error}); convert the model again"
            ) from None
        if self.config.get("num_nextn_predict_layers"):
            count = self.config["num_hidden_layers"]
            self._stored = {
                name: stored
                for name, stored in self._stored.items()
                if (block := _BLOCK.match(name)) is None or int(block[1]) < count
            }
        self.tensors = {}
        for name, stored in self._stored.items():
            # a file in bfloat16 has float32 only for vectors, whose values were bfloat16
            is_half = len(stored.shape) == 1 or stored.kind == gguf.GGMLQuantizationType.BF16
            dtype = "bfloat16" if is_half else "float32"
            self.tensors[name] = TensorInfo(stored.file, name, stored.shape, dtype)
        for name in [name for name in self.tensors if name.endswith(_KEYS)]:
            values, both = (name.replace(_KEYS, ending) for ending in (_VALUES, _BOTH))
            keys, info = self.tensors[name], self.tensors.get(values)
            # others are reported as tensors that nothing reads
            if info and len(keys.shape) == len(info.shape) == 3:
                heads, rank, width = keys.shape
                if (heads, rank) == info.shape[::2]:
                    shape = heads * (width + info.shape[1]), rank
                    self.tensors[both] = info._replace(stored=both, shape=shape)
                    del self.tensors[name], self.tensors[values]

    @property
    def remarks(self) -> list[str]:
        """How many tensors there are of each type."""
        counts = Counter(stored.kind.name for stored in self._stored.values())
        return [f"stored as {', '.join(f'{name} ({n})' for name, n in counts.most_common())}"]

    @property
    def tokenizer(self) -> Path:
        """The file itself."""
        return self.config_file

    def read_tokenizer(self) -> str:
        """Return the content of a tokenizer.json that splits texts as the file's tokenizer."""
        return tokenizer_json(self._metadata, str(self.config_file))

    def accompanying(self) -> dict[str, bytes]:
        """Return what the metadata hold of the files that come with a model on the hub."""
        ids, settings = special_tokens(self._metadata)
        contents = {CONFIG: self.config | ids, GENERATION: ids, TOKENIZER_CONFIG: settings}
        return {name: json.dumps(content).encode() for name, content in contents.items()}

    def named(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Return a family's rows with llama.cpp's names."""
        return named_rows(self._name, rows)

    def read(self, names: Collection[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield tensors by name, as transformers has them."""
        for name in (name for name in self.tensors if name in names):
            if name in self._stored:
                array = _floats(self._stored[name])
            else:
                keys, values = (
                    _floats(self._stored[name.replace(_BOTH, x)]) for x in (_KEYS, _VALUES)
                )
                joined = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
                array = joined.reshape(-1, joined.shape[-1])
            for part, heads in _QUERIES_AND_KEYS.items() if self._architecture.permuted else ():
                if part in name:
                    array = _reordered(array, self.config[heads], -1, 2)
            if self._architecture.tiled:
                array = _by_key_head(name, array, self.config)
            if name.endswith(".ssm_a"):
                array = np.log(-array)
            is_norm = name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")
            yield name, array - 1 if is_norm and self._architecture.plus_one else array


def named_rows(architecture: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return a family's rows with the names that llama.cpp's tensors have in an architecture.

    It orders the outputs of fused tensors by parameter, so there are no groups, but for queries
    with gates, and stores each matrix of all experts of a layer as one tensor.
    """
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], 1)
    leaves = {"kernel": "weight", "bias": "bias"}
    renamed = []
    for row in rows:
        experts = [match for path in row.paths if (match := _EXPERTS.fullmatch(path))]
        renamed += [
            Row(f"blk.{{}}.ffn_{match[1]}_exps.{leaves[match[2]]}", (match[0],))
            for match in experts
        ]
        if experts:
            continue
        if row.name.endswith(_QKVZ):  # of Qwen3-Next, stored as those of Qwen 3.5
            qkv, z = (row.name.replace(_QKVZ, f"{part}.weight") for part in ("qkv", "z"))
            renamed += named_rows(architecture, [Row(qkv, row.paths[:3]), Row(z, row.paths[3:])])
            continue
        spelled = row.name
        for theirs, here in _SPELLINGS.items():
            spelled = spelled.replace(theirs, here)
        module, _, leaf = spelled.format(0).rpartition(".")
        name = names.get_name(module)
        whole = names.get_name(spelled.format(0)) or (name and f"{name}.{leaf}") or row.name
        groups = row.groups if whole.endswith(_GROUPED) else 1
        whole = whole.replace("blk.0.", "blk.{}.")
        renamed.append(Row(whole, row.paths, groups, one_row=row.one_row))
    return tuple(renamed)


def stored_as(
    name: str, array: NDArray[Any], architecture: Architecture, config: Mapping[str, Any]
) -> NDArray[Any]:
    """Return one of transformers' tensors as llama.cpp's converter stores it.

    name: llama.cpp's. config: of config.json.
    """
    for part, heads in _QUERIES_AND_KEYS.items() if architecture.permuted else ():
        if part in name:
            array = _reordered(array, config[heads], 2, -1)
    return array + 1 if architecture.plus_one and name.endswith("norm.weight") else array


def _by_key_head(name: str, array: NDArray[Any], config: Mapping[str, Any]) -> NDArray[Any]:
    """Return a tensor whose value heads are ordered by key head, as transformers has them."""
    if not _BY_VALUE_HEAD.fullmatch(name):
        return array
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if ".ssm_out." in name:
        return _reordered(array.T, 1, values // keys, keys, -1).T
    first = 2 * keys * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0
    of_values = _reordered(array[first:], 1, values // keys, keys, -1)
    return np.concatenate([array[:first], of_values])


def _reordered(array: NDArray[Any], *axes: int) -> NDArray[Any]:
    """Return rows [heads · (a · b)] in the order [heads · (b · a)]. axes: heads, a and b."""
    return array.reshape(*axes, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _floats(stored: Stored) -> NDArray[np.float32]:
    try:
        return gguf.dequantize(stored.data, stored.kind)
    except NotImplementedError:
        raise UserError(
            f"{stored.file}: has tensors of type {stored.kind.name}, which the package gguf cannot "
            "dequantize"
        ) from None
