"""Schemas of Hugging Face checkpoints in and out."""

from typing import Literal

from pydantic import Field

from rope_jax.attention.backends import AttentionName
from rope_jax.config.data import DataConfig, StdlibData
from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import FloatName, LayersName
from rope_jax.config.tokenizer import Start
from rope_jax.config.types import FolderName, Frozen, Length, ListOf, NonNegativeInt


class Imported(Frozen):
    """The Hugging Face checkpoint that a run's weights were imported from."""

    model: str = Field(description="its folder, or its id on the hub")
    revision: str | None = Field(None, description="branch, tag or commit on the hub")
    identity: str = Field(description="hash of the paths, sizes and times of its files")


class ImportConfig(Frozen):
    """How a Hugging Face checkpoint becomes a run directory."""

    name: FolderName | None = Field(None, description="the run directory; null: the model's name")
    runs_dir: str = Field("runs", description="folder for run directories")
    revision: str | None = Field(None, description="branch, tag or commit; null: the newest")
    window: Length | None = Field(None, description="trained at; null: max_position_embeddings")
    param_dtype: FloatName | None = Field(
        None, description="type of the weights; null: bfloat16 if all of them are, else float32"
    )
    dtype: FloatName | None = Field(None, description="type of the activations; null: param_dtype")
    attention: AttentionName = Field(
        "auto", description="backend; auto: cpu where it can run, else blockwise (linear memory)"
    )
    layers: LayersName = Field("scanned", description="unrolled runs, scanned compiles faster")
    bos: Start = Field("auto", description="before each document; auto: as published; null: none")
    base: str | None = Field(None, description="of an adapter; null: what adapter_config.json says")
    ignored_keys: ListOf[str] = Field((), description="keys of config.json to leave out")
    data: DataConfig = Field(StdlibData(), description="texts of the run; a sweep may read others")
    mesh: MeshConfig = MeshConfig()


class ExportConfig(Frozen):
    """How a run becomes a directory that transformers loads, or a GGUF file."""

    step: NonNegativeInt | None = Field(None, description="training step; null: the newest")
    strategy: str | None = Field(None, description="rope-jax fit's file; null: as trained")
    family: str | None = Field(None, description="model_type; null: the import's, or what fits")
    outtype: Literal["f32", "f16", "bf16", "q8_0"] | None = Field(
        None, description="of a GGUF file; null: a copy of the one imported, or as the run has it"
    )
    adapter: bool = Field(False, description="what optim.lora trained alone, as PEFT reads it")
    lossy: bool = Field(False, description="leave out what the runtime lacks: map, query scale")
