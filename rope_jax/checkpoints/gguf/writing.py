"""A run as a GGUF file: a copy of the one that it was imported from, or its weights anew."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from flax.traverse_util import flatten_dict
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.checkpoints.describing import check_kind, model_keys, position_keys
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.gguf.architectures import (
    ARCHITECTURES,
    ROPE_FACTORS,
    Architecture,
    architecture_of,
    config_of,
    metadata_of,
)
from rope_jax.checkpoints.gguf.files import GgufFiles, named_rows, stored_as
from rope_jax.checkpoints.gguf.header import Shaped, Value, entry, write_gguf
from rope_jax.checkpoints.gguf.rope import Rope, express
from rope_jax.checkpoints.reading import Description, read_description
from rope_jax.checkpoints.tensors import Tensor, tensors_of
from rope_jax.checkpoints.weights import joined, shapes_of
from rope_jax.config.load import validate
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params
from rope_jax.rope import Scaling, parse_scaling

_FILE_TYPES = {Kind.F32: 0, Kind.F16: 1, Kind.Q8_0: 7, Kind.BF16: 32}
_OF_A_PART = {"general.alignment", "split.no", "split.count", "split.tensors.count"}
_UNSCALED = parse_scaling("none")


class Contents(NamedTuple):
    """What a file is written from. about: in words."""

    about: str
    entries: Sequence[bytes]
    tensors: Mapping[str, Shaped]
    data: Iterable[NDArray[Any]]

    def write(self, path: Path) -> None:
        """Write the file."""
        write_gguf(path, self.entries, self.tensors, self.data)


def copied(source: Path, training: TrainingConfig, scaling: Scaling, length: int) -> Contents:
    """Return a copy of the file that a run was imported from, with a scaling in its place.

    All tensors but those of the rotation stay byte for byte. length: that the model is meant for.

    UserError: the file is gone or has changed, or llama.cpp cannot express the scaling.
    """
    files = GgufFiles(source)
    if training.imported is None or files.identity() != training.imported.identity:
        raise UserError(
            f"{source}: is not the file that was imported, or was moved or changed since; import "
            "it again, or give outtype, with which the weights of the run are written"
        )
    header = files.header
    name, architecture, _ = architecture_of(header.metadata, str(source))
    entries = {key: x for key, x in header.entries.items() if key not in _OF_A_PART}
    tensors = {key: (stored.shape, stored.kind) for key, stored in header.tensors.items()}
    arrays: dict[str, NDArray[Any]] = {key: stored.data for key, stored in header.tensors.items()}
    new: dict[str, Value] = {f"{name}.context_length": length}
    if scaling != training.rope.scaling:
        scaled = f"{name}.rope.scal", f"{name}.rope.freq_base"
        entries = {k: x for k, x in entries.items() if not k.startswith(scaled[0])}
        for key in ROPE_FACTORS:
            tensors.pop(key, None)
        try:
            rope = _rope_of(training, scaling, architecture)
            new |= {f"{name}.{key}": value for key, value in rope.keys.items()}
            metadata = {key: header.metadata[key] for key in entries} | new
            rows = header.tensors["token_embd.weight"].shape[0]
            wanted = training, scaling, length
            _read_back(metadata, tensors, rope, rows, str(source), *wanted)
        except ValueError as error:
            raise UserError(f"strategy: {name} of llama.cpp cannot express it: {error}") from None
        tensors |= _shaped(rope)
        arrays |= rope.tensors
    entries |= {key: entry(key, value) for key, value in new.items()}
    about = f"a copy of {source} with {json.dumps(new)}"
    return Contents(about, [*entries.values()], tensors, (arrays[key] for key in tensors))


class Model(NamedTuple):
    """A run's model in an architecture of llama.cpp. config: its config.json, unscaled."""

    name: str
    architecture: Architecture
    config: dict[str, Any]
    metadata: dict[str, Value]
    rope: Rope
    tensors: dict[str, Tensor]

    def written(
        self, read: Callable[[], Params], outtype: str, tokens: Mapping[str, Value]
    ) -> Contents:
        """Return a file with the weights that `read` returns. outtype: f32, f16, bf16 or q8_0."""
        kind = Kind[outtype.upper()]
        metadata: dict[str, Value] = {
            "general.quantization_version": gguf.GGML_QUANT_VERSION,
            "general.file_type": _FILE_TYPES[kind],
            **self.metadata,
            **tokens,
        }
        kinds = {name: _kind_of(name, tensor.shape, kind) for name, tensor in self.tensors.items()}
        shaped = {name: (tensor.shape, kinds[name]) for name, tensor in self.tensors.items()}

        def data() -> Iterator[NDArray[Any]]:
            leaves = flatten_dict(read(), sep="/")
            for name, tensor in self.tensors.items():
                stopping.check()
                array = joined(tensor, leaves).astype(np.float32)
                array = stored_as(name, array, self.architecture, self.config)
                yield gguf.quantize(array, kinds[name])
            yield from self.rope.tensors.values()

        entries = [entry(key, value) for key, value in metadata.items()]
        about = f"{self.name} of llama.cpp, {outtype}, {json.dumps(self.rope.keys)}"
        return Contents(about, entries, shaped | _shaped(self.rope), data())


def model_of(
    training: TrainingConfig,
    scaling: Scaling,
    length: int,
    vocab_size: int,
    shapes: Params,
    model_type: str | None = None,
) -> Model:
    """Return a run's model in the first architecture of llama.cpp that can express it.

    model_type: of the only family that it may be. shapes: of its parameters.

    UserError: none can, with what those lack that come closest.
    """
    model = training.model.model_copy(update={"vocab_size": vocab_size})
    check_kind(model)
    lacks_model: dict[str, str] = {}
    lacks_positions: dict[str, str] = {}
    for name, architecture in _architectures(model_type):
        reasons, family = lacks_model, FAMILIES[architecture.model_type]
        try:
            config = model_keys(model, family)
            reasons = lacks_positions
            plain = scaling if "default" not in (family.rope_types or ["default"]) else _UNSCALED
            config |= position_keys(training, plain, length, family)
            rope = _rope_of(training, scaling, architecture)
            metadata = metadata_of(name, architecture, config, training.geometry.rotary_dim)
            metadata |= {f"{name}.{key}": value for key, value in rope.keys.items()}
            if architecture_of(metadata, name)[1] != architecture:
                continue  # it is of a variant
            tensors = tensors_of(named_rows(name, family.rows(model)), shapes_of(shapes))
            wanted = training, scaling, length
            read = _read_back(metadata, tensors, rope, vocab_size, name, *wanted)
            expected = read_description(config, name).model
            for field in expected.keys() - {"initializer_range"}:
                if expected[field] != read.model.get(field):
                    raise ValueError(f"no {field} {expected[field]}")
            return Model(name, architecture, config, metadata, rope, tensors)
        except (UserError, ValueError) as error:
            reasons.setdefault(str(error), name)
    why = [*(lacks_positions or lacks_model).items()][:3]
    shown = "; ".join(f"{name}: {reason}" for reason, name in why)
    raise UserError(f"family: llama.cpp cannot express this run ({shown})")


def _architectures(model_type: str | None) -> Iterator[tuple[str, Architecture]]:
    for name, architecture in ARCHITECTURES.items():
        for each in (architecture, *architecture.variants.values()):
            if model_type in (None, each.model_type):
                yield name, each


def _kind_of(name: str, shape: tuple[int, ...], kind: Kind) -> Kind:
    """Return what llama.cpp's converter stores a tensor as."""
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return Kind.F32
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return kind if shape[-1] % block == 0 else Kind.F16


def _shaped(rope: Rope) -> dict[str, Shaped]:
    return {name: (array.shape, Kind.F32) for name, array in rope.tensors.items()}


def _rope_of(training: TrainingConfig, scaling: Scaling, architecture: Architecture) -> Rope:
    """Return the rotation of the layers that see the whole text, of which a file has one.

    ValueError: llama.cpp has no form for it.
    """
    family = FAMILIES[architecture.model_type]
    if training.model.self_attention.type == "latent":
        raise ValueError("latent attention is written as it was trained alone")
    by_window = sorted(
        (training.pattern[i % len(training.pattern)].sliding_window is not None, i)
        for i in range(training.model.num_hidden_layers)
    )
    of_layers = [training.rotary_layers.for_layer(i, scaling) for _, i in by_window]
    rotating = [layer for layer in of_layers if layer[1].type != "drope"]
    geometry, applied = (rotating or of_layers)[0]
    rope = express(geometry, applied, architecture.reads)
    if family.local and "rope.scaling.attn_factor" in rope.keys:
        raise ValueError("its m would also be that of the layers that slide")
    if "rope_local_base_freq" in family.defaults:
        rope.keys["rope.freq_base_swa"] = float(of_layers[-1][0].base)
    if (query_scale := applied.query_scale) is not None:
        (key,) = architecture.scaling or ("",)
        if query_scale.type != "ministral" or not key:
            raise ValueError(f"no query_scale {query_scale.type}")
        rope.keys[key] = query_scale.beta
    return rope


def _read_back(
    metadata: Mapping[str, Any], tensors: Mapping[str, object], rope: Rope, rows: int, file: str,
    training: TrainingConfig, scaling: Scaling, length: int,
) -> Description:  # fmt: skip
    """Return the model that a file describes, as an import reads it.

    ValueError unless its layers rotate and see as much as those of the run.
    """
    config = config_of(metadata, tensors, rope.tensors, rows, file, lambda warning: None)
    read = read_description(config, file)
    raw = {
        "name": "read",
        "model": read.model,
        "rope": read.rope,
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 1, "seq_len": read.window, "batch_size": 1}],
    }
    found = validate(TrainingConfig, raw, "read")
    (theirs, ours) = ((found, found.rope.scaling), (training, scaling))
    if _seen(found, length) != _seen(training, length):
        raise ValueError("no sliding window in these layers")
    positions = np.arange(4)[None] * training.geometry.train_length
    for n in (1, length):
        a, b = (each.rotary_layers.frequencies(own, n) for each, own in (theirs, ours))
        pairs = (a.exact, b.exact), (a.attention_factor, b.attention_factor)
        scales = (each.rotary_layers.query_scale(own, positions) for each, own in (theirs, ours))
        for x, y in (*pairs, tuple(scales)):
            if not np.allclose(x, y, rtol=1e-5, atol=1e-20):
                raise ValueError("its layers differ otherwise than llama.cpp's do")
    return read


def _seen(training: TrainingConfig, length: int) -> list[list[int]]:
    """Return how much of a text of this length each layer sees."""
    layers = (
        training.pattern[i % len(training.pattern)] for i in range(training.model.num_hidden_layers)
    )
    return [
        [min(n or length, length) for n in (each.sliding_window, each.attention_chunk)]
        for each in layers
    ]
