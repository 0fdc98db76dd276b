"""The files of a Hugging Face checkpoint: checked and read, without running any code."""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from rope_jax.checkpoints import adapter
from rope_jax.checkpoints.adapter import Adapter
from rope_jax.checkpoints.opening import opened, read_json, without_prefix
from rope_jax.checkpoints.quantized import dequantized, logical_shape, partner, read_float8
from rope_jax.checkpoints.sentence_pieces import converted
from rope_jax.checkpoints.tensors import Row
from rope_jax.data.tokenizers import read_content
from rope_jax.errors import UserError

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SENTENCEPIECE = "tokenizer.model"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GGUF = ".gguf"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
ACCOMPANYING = (
    *(CONFIG, GENERATION, TOKENIZER_CONFIG, "special_tokens_map.json"),
    *(TEMPLATE, "chat_template.json"),
)
"""Small files that an import keeps, for an export to give back."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Buffers that older versions saved with the weights. They follow from the config, and some are
# masks of bytes or booleans.
_LEFTOVERS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|attention\.(bias|masked_bias))")
OTHER_PARTS = re.compile(
    r"(?:model\.)?(vision_tower|vision_model|visual|multi_modal_projector|mm_projector|mtp"
    r"|audio_tower|embed_vision|embed_audio|vision_embedder)\..*"
)
"""Names of the weights in other parts of a model, which are left out: of images, of more tokens."""
_OUTPUT = "lm_head.weight"
_EMBEDDINGS = {"model.embed_tokens.weight", "transformer.word_embeddings.weight"}
_OF_ALL = "mlp.experts.gate_up_proj"
_LAYER = re.compile(r"model\.layers\.(\d+)\..*")
_KEYS_OR_VALUES = re.compile(r"\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\.")


class TensorInfo(NamedTuple):
    """Where a tensor is, and what its file says about it.

    stored: its name there; ours has no prefix. dtype: numpy's name.
    scales: those of a quantized tensor, whose shape and dtype are those that it has once read.
    """

    file: Path
    stored: str
    shape: tuple[int, ...]
    dtype: str
    scales: "TensorInfo | None" = None


class CheckpointFiles:
    """The folder of a checkpoint. Its tensors are without buffers that follow from the config.

    Nor do they have layers after the last one, which predict further tokens (DeepSeek V3).

    UserError: there are no safetensors, or a file is missing or damaged.
    """

    warnings: Sequence[str] = ()
    """What may be wrong with the model as it is read, one line each."""

    def __init__(self, folder: Path, adapter: Adapter | None = None) -> None:
        """adapter: what is merged into the weights as they are read."""
        self.folder, self.adapter, self.config_file = folder, adapter, folder / CONFIG
        self.config = read_json(self.config_file)
        self._shards = _shards(folder)
        self._left_out: set[str] = set()
        self.tensors: dict[str, TensorInfo] = {}
        for path in self._shards:
            with opened(path) as file:
                for stored in file.keys():  # noqa: SIM118  not a mapping
                    name, part = without_prefix(stored), file.get_slice(stored)
                    if beside := self._other_part(name):
                        self._left_out.add(beside)
                    if beside or _LEFTOVERS.fullmatch(name):
                        continue
                    if name in self.tensors:
                        other = self.tensors[name].stored
                        raise UserError(f"{path}: {stored} and {other} are the same weight")
                    dtype = part.get_dtype()
                    self.tensors[name] = TensorInfo(path, stored, tuple(part.get_shape()), dtype)
        self._join_scales()
        # as PEFT has it, what changes one of the output matrix and the embedding leaves the other
        is_tied = _OUTPUT not in self.tensors and self.config.get("tie_word_embeddings", True)
        changed = adapter.changes.keys() & {_OUTPUT, *_EMBEDDINGS} if adapter else ()
        self._is_untied = bool(changed and is_tied)
        if self._is_untied:
            for embedding in _EMBEDDINGS & self.tensors.keys():
                self.tensors[_OUTPUT] = self.tensors[embedding]
            self.config["tie_word_embeddings"] = False
        if adapter and (absent := sorted(adapter.changes.keys() - self.tensors.keys())):
            raise UserError(f"{adapter.folder}: changes {absent[0]}, which {folder} lacks")

    def _other_part(self, name: str) -> str | None:
        """Return what a weight belongs to if it is none of the decoder's."""
        if beside := OTHER_PARTS.fullmatch(name):
            return beside[1]
        layer, count = _LAYER.fullmatch(name), self.config.get("num_hidden_layers")
        if layer is None or not isinstance(count, int):
            return None
        shared = self.config.get("num_kv_shared_layers") or 0
        if _KEYS_OR_VALUES.search(name) and count - shared <= int(layer[1]) < count:
            return "keys and values that layers share"
        predicts = int(layer[1]) >= count and self.config.get("num_nextn_predict_layers")
        return "the layers that predict further tokens" if predicts else None

    def _join_scales(self) -> None:
        """Give quantized tensors their scales, and all of them numpy's names of their types."""
        stored, self.tensors = self.tensors, {}
        pairs = {name: partner(name, info.dtype) for name, info in stored.items()}
        scales = {pair[1] for pair in pairs.values() if pair is not None}
        # those of activations, which are not quantized here
        scales |= {f"{scale.removesuffix('weight_scale_inv')}activation_scale" for scale in scales}
        for name, info in stored.items():
            if name in scales:
                continue
            pair = pairs[name]
            if pair is not None and pair[1] in stored:
                name, scales_name = pair
                shape = logical_shape(info.shape, info.dtype)
                info = info._replace(shape=shape, dtype="bfloat16", scales=stored[scales_name])
            elif info.dtype in _DTYPES:
                info = info._replace(dtype=_DTYPES[info.dtype])
            else:
                lacks = "" if pair is None else f" and no {pair[1]}"
                raise UserError(
                    f"{info.file}: {info.stored} has type {info.dtype}{lacks}; only "
                    f"{', '.join(_DTYPES)} can be read, and fp8 or MXFP4 with scales, so use the "
                    "checkpoint before it was quantized"
                )
            self.tensors[name] = info

    @property
    def remarks(self) -> list[str]:
        """What is special about the files, for the user to read."""
        infos = self.tensors.values()
        quantized = [info.stored for info in infos if info.scales is not None]
        prefixed = [x.stored for x in infos if without_prefix(x.stored) != x.stored]
        remarks = [f"{len(prefixed):,} names without prefixes, such as {x}" for x in prefixed[:1]]
        remarks += [f"{len(quantized):,} dequantized, such as {x}" for x in quantized[:1]]
        if self._left_out:
            remarks.append(f"without {' and '.join(sorted(self._left_out))}")
        if self.adapter:
            number = len(self.adapter.changes)
            remarks.append(f"{number:,} of them changed by {self.adapter.folder}")
        if self._is_untied:
            remarks.append("the output matrix no longer tied to the embedding")
        return remarks

    @property
    def tokenizer(self) -> Path:
        """Path of tokenizer.json, or else of tokenizer.model. UserError if there is neither."""
        for folder in [*([self.adapter.folder] if self.adapter else []), self.folder]:
            for name in (TOKENIZER, SENTENCEPIECE):
                if (folder / name).is_file():
                    return folder / name
        raise UserError(
            f"{self.folder / TOKENIZER}: no such file; save it with tokenizers' or transformers' "
            "fast tokenizer (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )

    def read_tokenizer(self) -> str:
        """Return the content of a tokenizer.json, that of the file `tokenizer` or made from it."""
        file = self.tokenizer
        if file.name == TOKENIZER:
            return read_content(file)
        return converted(file, self.tokenizer_settings())

    def tokenizer_settings(self) -> dict[str, Any]:
        """Return the tokenizer_config.json beside the tokenizer, if there is one."""
        file = self.tokenizer.with_name(TOKENIZER_CONFIG)
        return read_json(file) if file.is_file() else {}

    def accompanying(self) -> dict[str, bytes]:
        """Return the small files that an import keeps, by name."""
        paths = [self.folder / name for name in ACCOMPANYING]
        return {path.name: path.read_bytes() for path in paths if path.is_file()}

    def named(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return a family's rows with the names that its tensors have in these files.

        All experts of a layer may be one tensor, as transformers 5 has them (Qwen 3.5).
        """
        is_one = any(name.endswith(f".{_OF_ALL}") for name in self.tensors)
        if not is_one or any(row.name.endswith(_OF_ALL) for row in rows):
            return rows
        gate, up, down = (f"layers/mlp/experts/{x}_proj/kernel" for x in ("gate", "up", "down"))
        kept = [row for row in rows if not {*row.paths} & {gate, up, down}]
        name = f"model.layers.{{}}.{_OF_ALL}"
        return [*kept, Row(name, (gate, up)), Row(name.replace("gate_up", "down"), (down,))]

    def identity(self) -> str:
        """Return a hash of the paths, sizes and times of the checkpoint's files."""
        beside = [self.folder / name for name in (TOKENIZER_CONFIG, INDEX)]
        paths = [self.config_file, self.tokenizer, *beside, *self._shards]
        if self.adapter:
            paths += [self.adapter.folder / name for name in (adapter.CONFIG, adapter.WEIGHTS)]
        facts = [
            (str(path.resolve()), (status := path.stat()).st_size, status.st_mtime_ns)
            for path in paths
            if path.exists()
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def read(self, names: Collection[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield tensors by name, file by file. UserError if one is damaged."""
        for path in self._shards:
            with opened(path) as file:
                for name, info in self.tensors.items():
                    if info.file == path and name in names:
                        tensor = self._numbers(info, file)
                        yield name, self.adapter.merged(name, tensor) if self.adapter else tensor

    def _numbers(self, info: TensorInfo, file: Any) -> NDArray[Any]:
        is_float8 = file.get_slice(info.stored).get_dtype() == "F8_E4M3"
        stored = read_float8(info.file, info.stored) if is_float8 else file.get_tensor(info.stored)
        if info.scales is None:
            return stored
        with opened(info.scales.file) as other:
            scales = other.get_tensor(info.scales.stored)
        try:
            return dequantized(stored, scales, self.config.get("quantization_config") or {})
        except ValueError as error:
            raise UserError(f"{info.file}: {info.stored} has {error}") from None


def _shards(folder: Path) -> list[Path]:
    """Return the files with the weights: the single one if it is there, like transformers."""
    index, single = folder / INDEX, folder / SINGLE
    if single.is_file():
        return [single]
    if index.is_file():
        listed: Any = read_json(index).get("weight_map")
        names = list(listed.values()) if isinstance(listed, dict) else []
        if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
            raise UserError(f"{index}: has no weight_map from tensors to names of files beside it")
        return [folder / name for name in sorted(set(names))]
    pickles = sorted(path for pattern in _PICKLES for path in folder.glob(pattern))
    why = f"{folder}: has neither {SINGLE} nor {INDEX}; if the model has only pickles,"
    if pickles:
        why = f"{pickles[0]}: is a pickle, which may run code and is never loaded;"
    raise UserError(
        f'{why} where torch is installed, convert it: python -c "from transformers import '
        f"AutoModelForCausalLM as M; M.from_pretrained('{folder}')"
        f".save_pretrained('{folder}-safetensors')\""
    )
