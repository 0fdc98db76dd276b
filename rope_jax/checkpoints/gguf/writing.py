"""A run as a GGUF file: a copy of the one that it was imported from, or its weights anew."""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from rope_jax.checkpoints.reading import read_description
from rope_jax.checkpoints.tensors import Tensor, tensors_of
from rope_jax.checkpoints.weights import joined, shapes_of
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params
from rope_jax.rope import Scaling, parse_scaling
from rope_jax.rope.hf import layers_from_hf

_FILE_TYPES = {Kind.F32: 0, Kind.F16: 1, Kind.Q8_0: 7, Kind.BF16: 32}
_OF_A_PART = {"general.alignment", "split.no", "split.count", "split.tensors.count"}
_UNSCALED = parse_scaling("none")


class Contents(NamedTuple):
    """What a file is written from. about: in words. entries: by key, as a file has them."""

    about: str
    entries: Mapping[str, bytes]
    tensors: Mapping[str, Shaped]
    data: Iterable[NDArray[Any]]

    def write(self, path: Path) -> None:
        write_gguf(path, [*self.entries.values()], self.tensors, self.data)

    def rotating(self, name: str, rope: Rope) -> "Contents":
        """Return these with the keys and tensors of a rotation. name: of the architecture."""
        kinds = {key: (array.shape, Kind.F32) for key, array in rope.tensors.items()}
        return Contents(
            f"{self.about}, {json.dumps(rope.keys)}",
            {**self.entries, **_entries(_prefixed(name, rope))},
            {**self.tensors, **kinds},
            itertools.chain(self.data, rope.tensors.values()),
        )


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
    held, entries, stored, _ = files.header
    name, architecture, _ = architecture_of(held, str(source))
    entries = {key: x for key, x in entries.items() if key not in _OF_A_PART}
    entries |= _entries({f"{name}.context_length": length})
    rope = Rope({}, {})
    if scaling != training.rope.scaling:
        entries = {key: x for key, x in entries.items() if not key.startswith(f"{name}.rope.scal")}
        stored = {key: tensor for key, tensor in stored.items() if key not in ROPE_FACTORS}
        try:
            rope = _rope_of(training, scaling, architecture)
            metadata = {key: value for key, value in held.items() if key in entries}
            rows = stored["token_embd.weight"].shape[0]
            config = _read_back(name, metadata, stored, rope, rows)
            _check_rotation(config, training, scaling, length)
        except ValueError as error:
            raise UserError(f"strategy: {name} of llama.cpp cannot express it: {error}") from None
    tensors = {key: (tensor.shape, tensor.kind) for key, tensor in stored.items()}
    data = (tensor.data for tensor in stored.values())
    about = f"a copy of {source} for {length:,} tokens"
    return Contents(about, entries, tensors, data).rotating(name, rope)


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
        tensors = {
            name: (tensor.shape, _kind_of(name, tensor.shape, kind))
            for name, tensor in self.tensors.items()
        }

        def data() -> Iterator[NDArray[Any]]:
            leaves = flatten_dict(read(), sep="/")
            for name, tensor in self.tensors.items():
                stopping.check()
                array = joined(tensor, leaves).astype(np.float32)
                array = stored_as(name, array, self.architecture, self.config)
                yield gguf.quantize(array, tensors[name][1])

        about = f"{self.name} of llama.cpp, {outtype}"
        return Contents(about, _entries(metadata), tensors, data()).rotating(self.name, self.rope)


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
    if model.alternate_mixer is not None:
        raise UserError("model.alternate_mixer: can be copied from a GGUF file alone, not written")
    lacks_model: dict[str, str] = {}
    lacks_positions: dict[str, str] = {}
    architectures = [
        (name, each)
        for name, architecture in ARCHITECTURES.items()
        for each in (architecture, *architecture.variants.values())
        if model_type in (None, each.model_type)
    ]
    for name, architecture in architectures:
        reasons, family = lacks_model, FAMILIES[architecture.model_type]
        try:
            config = model_keys(model, family)
            reasons = lacks_positions
            config |= position_keys(training, _UNSCALED, length, family)
            windows = [element.sliding_window or length for element in training.pattern]
            if min(windows) < length and not architecture.windows:
                raise ValueError("no sliding window in these layers")
            rope = _rope_of(training, scaling, architecture)
            metadata = metadata_of(name, architecture, config, training.geometry.rotary_dim)
            tensors = tensors_of(
                named_rows(name, family.rows(model)), shapes_of(shapes), model.stacks
            )
            read = _read_back(name, metadata, tensors, rope, vocab_size)
            if read["model_type"] != family.model_type:
                continue  # it is of a variant
            _check_rotation(read, training, scaling, length)
            found, expected = (read_description(each, name).model for each in (read, config))
            for field in expected.keys() - {"initializer_range"}:
                if expected[field] != found.get(field):
                    raise ValueError(f"no {field} {expected[field]}")
            return Model(name, architecture, config, metadata, rope, tensors)
        except (UserError, ValueError) as error:
            reasons.setdefault(str(error), name)
    why = [*(lacks_positions or lacks_model).items()][:3]
    shown = "; ".join(f"{name}: {reason}" for reason, name in why)
    raise UserError(f"family: llama.cpp cannot express this run ({shown})")


def _kind_of(name: str, shape: tuple[int, ...], kind: Kind) -> Kind:
    """Return what llama.cpp's converter stores a tensor as."""
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return Kind.F32
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return kind if shape[-1] % block == 0 else Kind.F16


def _entries(metadata: Mapping[str, Value]) -> dict[str, bytes]:
    return {key: entry(key, value) for key, value in metadata.items()}


def _prefixed(name: str, rope: Rope) -> dict[str, Value]:
    return {f"{name}.{key}": value for key, value in rope.keys.items()}


def _rope_of(training: TrainingConfig, scaling: Scaling, architecture: Architecture) -> Rope:
    """Return the rotation of the layers that see the whole text, of which a file has one.

    ValueError: llama.cpp has no form for it.
    """
    family, rotary = FAMILIES[architecture.model_type], training.rotary_layers
    if training.model.self_attention.type == "latent":
        raise ValueError("latent attention is written as it was trained alone")
    layers = [rotary.for_layer(i, scaling) for i in range(rotary.count)]
    by_window = sorted(
        zip(itertools.cycle(training.pattern), layers, strict=False),
        key=lambda each: each[0].sliding_window is not None,
    )
    rotating = [layer for _, layer in by_window if layer[1].type != "drope"] or layers
    rope = express(*rotating[0], architecture.reads)
    if family.local and "rope.scaling.attn_factor" in rope.keys:
        raise ValueError("its m would also be that of the layers that slide")
    if "rope_local_base_freq" in family.defaults:
        rope.keys["rope.freq_base_swa"] = float(rotating[-1][0].base)
    return rope


def _read_back(
    name: str, metadata: Mapping[str, Any], tensors: Collection[str], rope: Rope, rows: int
) -> dict[str, Any]:
    """Return the config.json of a file with a rotation, as an import reads it."""
    warnings: list[str] = []  # of what was just chosen
    described = {**metadata, **_prefixed(name, rope)}
    return config_of(described, tensors, rope.tensors, rows, name, warnings.append)


def _check_rotation(
    config: Mapping[str, Any], training: TrainingConfig, scaling: Scaling, length: int
) -> None:
    """ValueError unless the layers of a config.json rotate like those of the run."""
    positions = np.arange(4)[None] * training.geometry.train_length
    theirs, own = layers_from_hf(config)
    for n in (1, length):
        read = theirs.rotary(own, positions, n)
        wanted = training.rotary_layers.rotary(scaling, positions, n)
        a, b = read.frequencies, wanted.frequencies
        pairs = (a.exact, b.exact), (a.attention_factor, b.attention_factor)
        for x, y in (*pairs, (read.query_scale, wanted.query_scale)):
            if not np.allclose(x, y, rtol=1e-5, atol=1e-20):
                raise ValueError("its layers differ otherwise than llama.cpp's do")
