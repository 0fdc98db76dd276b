"""The files of a Hugging Face checkpoint: found, checked and read, without running any code."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  safetensors finds numpy's bfloat16 only once this is imported
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rope_jax.errors import UserError
from rope_jax.rope.files import read_limited

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ACCOMPANYING = (
    *(CONFIG, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)
"""Small files that an import keeps, for an export to give back."""
# What a download needs: no code, no pickles, no second copy in another format.
PATTERNS = (*ACCOMPANYING, TOKENIZER, INDEX, "model*.safetensors")

_MOST_JSON = 2**26  # bytes; the largest tokenizers take about 2^25
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Buffers that older versions saved with the weights. They follow from the config, and some are
# masks of bytes or booleans.
_LEFTOVERS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|attention\.(bias|masked_bias))")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor is, and what its file says about it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """numpy's name: float64, float32, float16 or bfloat16."""


class CheckpointFiles:
    """The folder of a checkpoint. Buffers that follow from the config are left out of its tensors.

    Raises UserError if there are no safetensors, a file of the index is missing, or one is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG)
        self._shards = _shards(folder)
        self.tensors = {name: info for path in self._shards for name, info in _infos(path)}
        index = folder / INDEX
        if index.is_file():
            listed = {n: f for n, f in _weight_map(index).items() if not _LEFTOVERS.fullmatch(n)}
            if missing := sorted(set(listed) - set(self.tensors)):
                raise UserError(
                    f"{index}: lists {missing[0]}, but {listed[missing[0]]} does not contain it; "
                    "download the checkpoint again"
                )

    @property
    def tokenizer(self) -> Path:
        """Path of tokenizer.json. UserError if there is none."""
        path = self.folder / TOKENIZER
        if not path.is_file():
            raise UserError(
                f"{path}: no such file; save it with tokenizers' or transformers' fast tokenizer "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(...))"
            )
        return path

    def identity(self) -> str:
        """Return a hash of what the checkpoint's files are: their paths, sizes and times."""
        names = [CONFIG, TOKENIZER, "tokenizer_config.json", INDEX]
        paths = [self.folder / name for name in names] + self._shards
        facts = [
            (str(path.resolve()), (status := path.stat()).st_size, status.st_mtime_ns)
            for path in paths
            if path.exists()
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def shards(self) -> Iterator["Shard"]:
        """Yield the safetensors files one after the other; each is closed before the next."""
        for path in self._shards:
            names = [name for name, info in self.tensors.items() if info.file == path]
            with opened(path) as file:
                yield Shard(path, names, file)


@dataclass(frozen=True)
class Shard:
    """One open safetensors file."""

    path: Path
    names: list[str]
    file: Any

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor. UserError if the file is damaged."""
        try:
            tensor: NDArray[Any] = self.file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise _damaged(self.path, error) from None
        return tensor


def find_folder(model: str, revision: str | None) -> Path:
    """Return the folder of a checkpoint: a local one, or that of a download from the hub.

    Raises UserError.
    """
    try:
        folder = Path(model).expanduser()
        is_folder, may_be_id = folder.is_dir(), _HUB_ID.fullmatch(model) and not folder.exists()
    except (OSError, RuntimeError):  # a name that is too long, or the home of nobody
        is_folder, may_be_id = False, False
    if is_folder:
        if revision is not None:
            raise UserError(f"revision: {model} is a local folder, which has no revisions")
        return folder
    if not may_be_id:
        raise UserError(
            f"{model}: is neither a folder with a {CONFIG} nor the id (owner/name) of a model on "
            "the Hugging Face hub"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(PATTERNS)))
    except Exception as error:  # the network, the hub, a licence that is not accepted
        message = " ".join(str(error).split())
        raise UserError(f"{model}: cannot be downloaded from the hub: {message}") from error


def is_checkpoint(model: str) -> bool:
    """Whether a command's argument names a Hugging Face checkpoint instead of a run."""
    try:
        folder = Path(model).expanduser()
        if (folder / "config.yaml").exists():
            return False
        if (folder / CONFIG).is_file():
            return True
        # runs/dmeo is a misspelt run, not a model of the owner "runs"
        return bool(_HUB_ID.fullmatch(model)) and not folder.exists() and not folder.parent.exists()
    except (OSError, RuntimeError):  # such as a name that is too long, or an unknown user's home
        return False


def _shards(folder: Path) -> list[Path]:
    index, single = folder / INDEX, folder / SINGLE
    if index.is_file():
        paths = [folder / name for name in sorted(set(_weight_map(index).values()))]
        for path in paths:
            if not path.is_file():
                raise UserError(
                    f"{path}: is missing, and {INDEX} lists it; download the checkpoint again"
                )
        return paths
    if single.is_file():
        return [single]
    pickles = sorted(path for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{pickles[0]}: is a pickle, which may run code and is never loaded; {_convert(folder)}"
        )
    raise UserError(
        f"{folder}: has neither {SINGLE} nor {INDEX}; if the model has only pickles, "
        f"{_convert(folder)}"
    )


def _convert(folder: Path) -> str:
    """Return the advice how to make safetensors of pickles."""
    return (
        'where torch is installed, convert it: python -c "from transformers import '
        f"AutoModelForCausalLM as M; M.from_pretrained('{folder}')"
        f".save_pretrained('{folder}-safetensors')\""
    )


def _weight_map(index: Path) -> Mapping[str, str]:
    found = read_json(index).get("weight_map")
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(file, str) and Path(file).name == file for file in found.values())
    ):
        raise UserError(f"{index}: has no weight_map from tensors to the names of files beside it")
    return found


def _infos(path: Path) -> Iterator[tuple[str, TensorInfo]]:
    with opened(path) as file:
        for name in file.keys():  # noqa: SIM118  not a mapping
            if _LEFTOVERS.fullmatch(name):
                continue
            part = file.get_slice(name)
            dtype = part.get_dtype()
            if dtype not in _DTYPES:
                raise UserError(
                    f"{path}: {name} has type {dtype}; only {', '.join(_DTYPES)} can be read, so "
                    "use the checkpoint before it was quantized"
                )
            yield name, TensorInfo(path, tuple(part.get_shape()), _DTYPES[dtype])


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. UserError if it is truncated or damaged."""
    try:
        opened = safe_open(path, framework="numpy")
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from None
    with opened as file:
        yield file


def _damaged(path: Path, error: Exception) -> UserError:
    message = " ".join(str(error).split())
    return UserError(f"{path}: is truncated or damaged ({message}); download the checkpoint again")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. UserError if it cannot be read or is none."""
    try:
        content = json.loads(read_limited(path, _MOST_JSON))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: is not JSON") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not a JSON object")
    return content


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays are equal bit for bit, NaNs and signs of zero included."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(
            np.ascontiguousarray(a).reshape(-1).view(np.uint8),
            np.ascontiguousarray(b).reshape(-1).view(np.uint8),
        )
    )
