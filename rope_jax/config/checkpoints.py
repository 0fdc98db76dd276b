"""Schemas of Hugging Face checkpoints in and out. Imports no jax."""

from typing import Annotated, Literal

from pydantic import Field

from rope_jax.attention import AttentionName
from rope_jax.config.data import DataConfig, StdlibData
from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import FloatName
from rope_jax.config.types import FolderName, Frozen, Length, NonNegativeInt, PathText


class Imported(Frozen):
    """The Hugging Face checkpoint that a run's weights were imported from."""

    model: str = Field(description="its folder, or its id on the hub")
    revision: str | None = Field(None, description="branch, tag or commit on the hub")
    identity: str = Field(description="hash of the paths, sizes and times of its files")


class ImportConfig(Frozen):
    """How a Hugging Face checkpoint becomes a run directory."""

    name: FolderName | None = Field(
        None, description="name of the run directory; null: last part of the checkpoint's name"
    )
    runs_dir: PathText = Field("runs", description="folder for run directories")
    revision: str | None = Field(
        None, description="branch, tag or commit on the hub; null: the newest"
    )
    window: Length | None = Field(
        None,
        description="length that the model was last trained at; null: max_position_embeddings",
    )
    param_dtype: FloatName | None = Field(
        None,
        description="type in which the weights are kept; null: bfloat16 if all of them are, "
        "else float32",
    )
    dtype: FloatName | None = Field(
        None, description="type of the activations; null: that of the weights"
    )
    attention: AttentionName = Field(
        "auto",
        description="backend; auto: cpu where it can run, else blockwise, whose memory is linear "
        "in the length",
    )
    layers: Literal["unrolled", "scanned"] = Field(
        "scanned", description="unrolled runs faster on CPU, scanned compiles faster"
    )
    bos: str | None = Field(
        "auto",
        min_length=1,
        description="text of the token that is put before each document; auto: the one that the "
        "tokenizer's post-processor adds; null: none",
    )
    ignored_keys: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (),
        description="keys of config.json to leave out, also within rope_parameters, because they "
        "do not change the logits",
    )
    data: DataConfig = Field(StdlibData(), description="texts of the run; a sweep may read others")
    mesh: MeshConfig = MeshConfig()


class ExportConfig(Frozen):
    """How a run becomes a directory that transformers loads."""

    step: NonNegativeInt | None = Field(
        None, description="training step of the checkpoint; null: the newest"
    )
    strategy: PathText | None = Field(
        None,
        description="file written by scripts/fit.py, which replaces scaling and map; null: those "
        "that the checkpoint was trained with",
    )
    family: str | None = Field(
        None, description="model_type to write; null: the first that can express the model"
    )
    lossy: bool = Field(
        False,
        description="write the model even without its position map or query scale, which "
        "transformers cannot express",
    )
