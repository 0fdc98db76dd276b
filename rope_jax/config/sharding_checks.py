"""Which models a mesh can split: sizes that its axes divide, and what devices cannot share."""

from collections.abc import Iterable

from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import ModelConfig
from rope_jax.positions.maps import PositionMap

# Attention in blocks takes a chunk up to this many tokens as one block; it cuts longer ones, and
# would be slow in blocks shorter than the second number.
_LONGEST_BLOCK, _SHORTEST_BLOCK = 512, 64


def check_mesh(mesh: MeshConfig, model: ModelConfig, maps: Iterable[PositionMap | None]) -> None:
    """ValueError, which begins with a key, if devices cannot share a model's windows or heads."""
    _check_divides("fsdp", mesh.fsdp, "model.hidden_size", model.hidden_size)
    _check_divides("tensor", mesh.tensor, "model.num_attention_heads", model.num_attention_heads)
    _check_divides("tensor", mesh.tensor, "model.num_key_value_heads", model.kv_heads)
    _check_divides("tensor", mesh.tensor, "model.intermediate_size", model.intermediate_size)
    if mesh.context > 1 and not model.backend.splits_windows:
        raise ValueError(
            f"mesh.context: attention {model.attention} needs whole windows, so {mesh.context} "
            "devices cannot share one; use blockwise, xla or splash, or mesh.context=1"
        )
    if mesh.tensor > 1 and (reason := _reason_for_whole_heads(model, maps)):
        raise ValueError(
            f"mesh.tensor: {reason}, so {mesh.tensor} devices cannot share the heads; use "
            "mesh.fsdp instead"
        )


def check_vocabulary(mesh: MeshConfig, vocab_size: int) -> None:
    """ValueError, which begins with a key, if devices cannot share a model's vocabulary."""
    _check_divides("tensor", mesh.tensor, "model.vocab_size", vocab_size)


def check_seq_len(mesh: MeshConfig, seq_len: int) -> None:
    """ValueError if windows of this length do not consist of two equal chunks for each device."""
    if seq_len % (chunks := 1 if mesh.context == 1 else 2 * mesh.context):
        raise ValueError(
            f"{seq_len:,} tokens cannot be split into {chunks} equal chunks, two for each of "
            f"mesh.context {mesh.context} devices; {_multiple(seq_len, chunks):,} can"
        )
    chunk = seq_len // chunks
    if mesh.context > 1 and chunk > _LONGEST_BLOCK and chunk % _SHORTEST_BLOCK:
        raise ValueError(
            f"{seq_len:,} tokens make chunks of {chunk:,}, two for each of mesh.context "
            f"{mesh.context} devices, which attention cannot cut into equal blocks of some size; "
            f"{_multiple(seq_len, chunks * _SHORTEST_BLOCK):,} can be cut"
        )


def differ_by_head(maps: Iterable[PositionMap | None]) -> bool:
    """Whether any of these maps has numbers for each head; None: without a map."""
    return any(map_ is not None and map_.differs_by_head for map_ in maps)


def _reason_for_whole_heads(model: ModelConfig, maps: Iterable[PositionMap | None]) -> str | None:
    if model.position.differs_by_head:
        return f"position {model.position.type} has numbers of its own for each head"
    if model.qk_norm == "all_heads":
        return "model.qk_norm all_heads divides by the norm of all heads together"
    if differ_by_head(maps):
        return "map fitted has numbers of its own for each head"
    return None


def _check_divides(axis: str, devices: int, key: str, size: int) -> None:
    if size % devices:
        fewer = max(number for number in range(1, devices) if size % number == 0)
        raise ValueError(
            f"mesh.{axis}: {key} {size:,} cannot be split over {devices:,} devices; "
            f"{key}={_multiple(size, devices)} or mesh.{axis}={fewer} can"
        )


def _multiple(size: int, of: int) -> int:
    """Return the smallest multiple that is not below `size`."""
    return -(-size // of) * of
